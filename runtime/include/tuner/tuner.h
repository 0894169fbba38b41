/* Runs the kernels of a pack. C11, over the CUDA driver API, which is loaded by the first call that needs it.
 *
 * Threads. Any number of threads may share a pack. A prepared FFN, attention or layer has one workspace, so only one
 * thread and one stream may use it at a time.
 * Memory. Between preparation and release, nothing is allocated on the host or on the device.
 * Graphs. tuner_ffn_launch, tuner_attention_launch and tuner_layer_launch may be captured. The other functions may not.
 * Contexts. Calls use the thread's current CUDA context, which PyTorch, CuPy and the CUDA runtime set. */
#ifndef TUNER_TUNER_H
#define TUNER_TUNER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented when a struct or a function of this header changes. */
#define TUNER_RUNTIME_ABI 3

typedef enum tuner_status {
  TUNER_OK = 0,
  TUNER_LIBRARY = 1,    /* the vendor's library is at least as fast for these rows */
  TUNER_NONE = 2,       /* the pack has no entry for this shape and these rows */
  TUNER_ABORTED = 3,    /* a launch was aborted; its results must not be used */
  TUNER_OTHER_CARD = 4, /* the kernels run here, but were measured on a card with a different number of SMs */
  TUNER_BAD_ARGUMENT = -1,
  TUNER_BAD_PACK = -2,
  TUNER_NO_DRIVER = -3,
  TUNER_CUDA_ERROR = -4,
  TUNER_MISMATCH = -5, /* the kernel does not run on this device */
  TUNER_NO_MEMORY = -6,
  TUNER_NO_VARIANT = -7, /* the pack does not have the requested build of the kernel */
  TUNER_NEEDS_RESET = -8, /* an earlier call enqueued only some of its launches */
} tuner_status;

enum { TUNER_FP16 = 0, TUNER_BF16 = 1, TUNER_FP8_E4M3 = 4, /* of the operands */
       TUNER_FP32 = 2, TUNER_INT32 = 3, TUNER_UINT8 = 5 };  /* only for tensors of layers */
enum { TUNER_IDENTITY = 0, TUNER_RELU = 1, TUNER_GELU = 2, TUNER_SILU = 3 };
/* Flags of a shape. */
enum { TUNER_GATED = 1, TUNER_BIAS = 2, TUNER_RESIDUAL = 4, TUNER_ROW_SCALE = 8 };
/* Flags of tuner_ffn_prepare. The default is the guarded build. */
enum {
  TUNER_AS_MEASURED = 1, /* the build that was timed: it does not detect two simultaneous launches, it reports no abort
                            to the host, and a programmatic launch that follows may begin before the launch that
                            precedes this build has ended */
  TUNER_SAFE_WEIGHTS = 2 /* the preceding work in the stream may write the weights */
};
/* Flags of tuner_ffn_launch. */
enum { TUNER_NO_PDL = 1 }; /* a plain launch: it begins when all earlier work in the stream has ended */

typedef struct tuner_pack tuner_pack;
typedef struct tuner_ffn tuner_ffn;

/* Y[m, d_out] = activation(s X[m, d_in] W1[d_hidden, d_in]^T + b1) W2[d_out, d_hidden]^T + b2 + R. Gated: W1 is
 * [2 d_hidden, d_in] and b1 [2 d_hidden], with the rows of the gate before those of the up projection, and the
 * intermediate is activation(gate) * up. GELU uses the tanh form. */
typedef struct tuner_shape {
  int32_t dtype, activation, d_in, d_hidden, d_out;
  uint32_t flags;
} tuner_shape;

/* The pack's choice for a shape and a number of rows. */
typedef struct tuner_choice {
  uint32_t kernel;       /* the kernel's number in the pack */
  int32_t m_lo, m_hi;    /* the range of rows for which it was chosen */
  double speedup;        /* the library's time divided by the kernel's; 0 if nothing was measured */
  size_t memory_bytes;   /* device memory that tuner_ffn_prepare needs */
  const char *text;      /* the plan kind and the schedule, or the library's recipe; owned by the pack */
  uint8_t digest[32];    /* sha256 of the kernel's manifest */
} tuner_choice;

/* Device addresses, all multiples of 16, of row-major contiguous tensors. Null for tensors that the shape does not
 * have. `hidden` is memory for the intermediate [m, d_hidden]; consecutive launches in one stream may share it.
 * `residual` may be equal to `y`; apart from that, written tensors must not overlap others.
 * A launch checks that required addresses are not null, that they are aligned, and, from the shape and m, that `hidden`
 * and `y` overlap nothing but that residual. It cannot check the memory: the caller must ensure that it is on this
 * device, large enough, and of this element type. Tensors that the shape does not have are ignored. */
typedef struct tuner_tensors {
  const void *x, *w1, *w2, *b1, *b2, *residual;
  const float *row_scale;
  void *hidden, *y;
} tuner_tensors;

/* The wait that expired, and why. */
typedef struct tuner_abort_record {
  int32_t task;   /* number of the task in the plan; -1: the start gate; -2: two launches ran at the same time on one
                     workspace */
  int32_t signal; /* the signal that was waited for; -1 if none: at the start gate, or in a task that reads in band */
  uint32_t seen, expected;
  int32_t cta;
} tuner_abort_record;

/* The last failure of this thread as a sentence; never null. */
const char *tuner_error(void);
/* Sets the driver's library; the default is libcuda.so.1. Must precede the first call that needs the driver. For tests
 * and unusual installations. */
tuner_status tuner_load_driver(const char *path);

/* Verifies the whole file before using any of it. */
tuner_status tuner_pack_open(const char *path, tuner_pack **pack);
/* Opens a pack in memory. The bytes must stay in place until the pack is closed and everything prepared from it is
 * released. */
tuner_status tuner_pack_open_bytes(const void *bytes, size_t num_bytes, tuner_pack **pack);
/* After this, nothing more can be prepared from the pack. What was prepared stays usable until it is released. */
void tuner_pack_close(tuner_pack *pack);
/* OK if all kernels run on the device, OTHER_CARD if they run at different speeds, MISMATCH if some do not, for example
 * because the device cannot hold the CTAs or clusters that must be resident at once. This check loads the kernels: into
 * the current context if it belongs to the device, otherwise into the device's primary context. */
tuner_status tuner_pack_check(const tuner_pack *pack, int device);
/* Shape number `index`, and the number of shapes; `m_hi` is its largest number of rows. */
tuner_status tuner_pack_shape(const tuner_pack *pack, uint32_t index, tuner_shape *shape, uint32_t *num_shapes);

/* OK, LIBRARY or NONE; BAD_ARGUMENT for a shape that no pack can have: an unknown dtype, activation or flag, or a size
 * below 1. `m_lo` and `m_hi` bound the rows with the same result, also for NONE. */
tuner_status tuner_ffn_find(const tuner_pack *pack, const tuner_shape *shape, int32_t m, tuner_choice *choice);
/* Loads the kernel into the current context, and places plans and workspaces in `memory`: choice.memory_bytes of device
 * memory at a multiple of 256. Returns when everything is copied. `num_cached`: for how many sets of addresses and rows
 * the parameters are kept ready; 0 means 64. */
tuner_status tuner_ffn_prepare(tuner_pack *pack, const tuner_choice *choice, void *memory, void *stream, uint32_t flags,
                               uint32_t num_cached, tuner_ffn **ffn);
/* No launch may be running. */
void tuner_ffn_release(tuner_ffn *ffn);
/* Enqueues the launches for `m` rows, which the kernel must support. If the driver reports an error, either nothing was
 * enqueued, or the message says how many launches were; in that case every call returns NEEDS_RESET until the reset.
 * MISMATCH if the stream, e.g. of a green context, has too few SMs; this is not checked during capture. */
tuner_status tuner_ffn_launch(tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors, void *stream, uint32_t flags);
/* The same with its arguments in memory, for languages in which each argument of a call takes time. */
typedef struct tuner_launch {
  tuner_ffn *ffn;
  void *stream;
  int32_t m;
  uint32_t flags;
  tuner_tensors tensors;
} tuner_launch;
tuner_status tuner_ffn_launch_from(const tuner_launch *launch);

/* ABORTED and the record if a launch was aborted since the last reset, otherwise OK. It does not call the driver, so it
 * may be called at any time, even while launches are running. */
tuner_status tuner_abort_poll(const tuner_ffn *ffn, tuner_abort_record *record);
/* After an abort, or a call that was enqueued in part: waits for `stream`, then resets the workspaces. No launch may be
 * running on another stream. */
tuner_status tuner_reset(tuner_ffn *ffn, void *stream);

/* Decode attention: the last `new_tokens` tokens of each sequence attend to all tokens up to themselves. If d_out is
 * not 0, the result is projected. Y[sequences * new_tokens, d_out or heads * head_dim]. */
typedef struct tuner_attention_shape {
  int32_t dtype, heads, kv_heads, head_dim, new_tokens;
  int32_t page_tokens; /* tokens per page of the cache; 0: the cache is contiguous */
  uint32_t flags;      /* TUNER_HEADS_FIRST; required if the cache is contiguous */
  int32_t window;      /* maximum number of tokens that a query sees; 0 for all */
  int32_t d_out;       /* columns of the projection; 0 for no projection */
  float scale;         /* factor of the scores, e.g. 1 / sqrt(head_dim) */
  float soft_cap;      /* soft cap of the scores; 0 for none */
} tuner_attention_shape;
/* A page is [kv_heads, page_tokens, head_dim] with this flag, otherwise [page_tokens, kv_heads, head_dim]. */
enum { TUNER_HEADS_FIRST = 1 };

/* The pack's choice for a shape, a number of sequences and a context. */
typedef struct tuner_attention_choice {
  uint32_t program;      /* the kernel's number in the pack */
  int32_t sequences;
  int32_t max_length;    /* tokens of the longest supported context; with a contiguous cache, the rows per head */
  double speedup;        /* the library's time divided by the kernel's; 0 if nothing was measured */
  size_t memory_bytes;   /* device memory that tuner_attention_prepare needs */
  const char *text;      /* the plan kind and the schedule, or the library's recipe; owned by the pack */
  uint8_t digest[32];    /* sha256 of the artifact's manifest */
} tuner_attention_choice;

/* Device addresses, all multiples of 16, of row-major contiguous tensors. Null for tensors that the shape does not
 * have. `y` must not overlap anything. A launch checks null and alignment; the caller is responsible for sizes, element
 * types and overlaps. Keys and values of the new tokens must be in the cache before the launch. Cache entries after the
 * length are ignored. */
typedef struct tuner_attention_tensors {
  const void *q;           /* [sequences * new_tokens, heads * head_dim] */
  const void *keys, *values; /* [sequences, kv_heads, max_length, head_dim], or [num_pages, a page] */
  const int32_t *lengths;  /* length of each sequence, including new tokens; rows of a sequence of length 0 become zeros
                              */
  const int32_t *pages;    /* page table [sequences, ceil(max_length / page_tokens)] of a paged cache */
  const void *w;           /* weights of the projection [d_out, heads * head_dim] */
  void *y;
  int64_t num_pages;       /* pages of the cache; 0 if it is contiguous */
} tuner_attention_tensors;

/* The first invalid input of a launch since the last reset. */
typedef struct tuner_attention_refusal {
  int32_t kind;     /* 1: a length, 2: a page number; -1: a launch of products was aborted, and its rows are NaN */
  int32_t sequence;
  int32_t value;    /* the invalid value; a length was clamped to the valid range, a page was read as zeros */
  int32_t end;      /* valid values are 0 to end - 1 */
} tuner_attention_refusal;

/* Shape number `index`, and the number of shapes; NONE after the last one. */
tuner_status tuner_pack_attention(const tuner_pack *pack, uint32_t index, tuner_attention_shape *shape,
                                  uint32_t *num_shapes);
/* OK, LIBRARY or NONE: the entry for this many sequences with the smallest context that is at least `length`.
 * BAD_ARGUMENT for a shape that no pack can have, no sequences, or a negative length. */
tuner_status tuner_attention_find(const tuner_pack *pack, const tuner_attention_shape *shape, int32_t sequences,
                                  int32_t length, tuner_attention_choice *choice);
/* Like tuner_ffn_prepare. All layers of a model may share one, since their launches follow each other in one stream.
 * Uses the builds that were timed. */
typedef struct tuner_attention tuner_attention;
tuner_status tuner_attention_prepare(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                                     uint32_t num_cached, tuner_attention **attention);
/* No launch may be running. */
void tuner_attention_release(tuner_attention *attention);
/* Enqueues the launches, like tuner_ffn_launch. `flags`: TUNER_NO_PDL. */
tuner_status tuner_attention_launch(tuner_attention *attention, const tuner_attention_tensors *tensors, void *stream,
                                    uint32_t flags);
/* ABORTED and the invalid input, otherwise OK. Waits for `stream`. */
tuner_status tuner_attention_refused(const tuner_attention *attention, void *stream, tuner_attention_refusal *refusal);
/* Waits for `stream`, then resets the memory. No launch may be running on another stream. */
tuner_status tuner_attention_reset(tuner_attention *attention, void *stream);

/* A decode step of a layer, or of consecutive ops of it: products around an attention, e.g. norm, qkv, attention and
 * o_proj; or a chain of only products, e.g. norm, gate_up and down. Without an attention `heads` is 0, and all products
 * count as preceding it. */
typedef struct tuner_layer_shape {
  tuner_attention_shape attention; /* d_out: columns of the last op; with rotary embeddings, columns of the queries */
  int32_t d_in;                    /* columns of the first op's input */
  int32_t num_in_front;            /* number of products before the attention */
  int32_t num_products;
  const char *ops;                 /* the names of all ops, in order, separated by blanks; owned by the pack */
} tuner_layer_shape;

/* A tensor that is passed to a launch. */
typedef struct tuner_layer_tensor {
  const char *name;   /* name in the artifact's manifest, e.g. "qkv.w"; owned by the pack */
  const char *role;   /* input, input_squares, weight, bias, residual, row_scale, cache, lengths, pages, frequencies, output */
  int32_t dtype, rank;
  int32_t dims[4];    /* if a chain supports fewer rows, the maximum */
  int32_t has_pages;  /* whether dims[0] may differ: it is the number of pages */
} tuner_layer_tensor;

/* Device addresses, all multiples of 16, in the order of tuner_layer_tensor_at, of row-major contiguous tensors. A
 * launch checks their number, null and alignment; the caller is responsible for sizes, element types and overlaps.
 * Tensors that only the launches exchange are in the layer's own memory. If a product before the attention rotates
 * queries and keys, it writes keys and values of the new tokens to the cache; otherwise they must be in the cache
 * before the launch. */
typedef struct tuner_layer_tensors {
  const void *const *addresses;
  uint32_t num_addresses;
  int64_t num_pages; /* pages of the cache; 0 if it is contiguous */
} tuner_layer_tensors;

/* Layer number `index`, and the number of layers; NONE after the last one. */
tuner_status tuner_pack_layer(const tuner_pack *pack, uint32_t index, tuner_layer_shape *shape, uint32_t *num_layers);
/* Like tuner_attention_find, for layer number `index`. For a chain, it uses the number of rows and ignores `length`. */
tuner_status tuner_layer_find(const tuner_pack *pack, uint32_t index, int32_t sequences, int32_t length,
                              tuner_attention_choice *choice);
/* Tensor number `index` of a kernel; NONE after the last one. */
tuner_status tuner_layer_tensor_at(const tuner_pack *pack, const tuner_attention_choice *choice, uint32_t index,
                                   tuner_layer_tensor *tensor);
/* How quantised weights are stored: as one tensor of bytes [rows, bytes per row]. */
typedef struct tuner_weights {
  const char *format;  /* e.g. "int4_g128_zp"; these texts are owned by the pack */
  const char *layout;  /* name of the layout of codes and factors; tuner_weights_lay supports those of this version's
                          kernels */
  const char *factors; /* element type of the groups' factors, e.g. "bf16"; empty if there are none */
  int32_t bits, group; /* bits per code; weights of a row that share a factor, 0 if there are no factors */
  int32_t has_zeros;   /* whether each group of a row has a zero point */
  int32_t rows, k;     /* weights in a row */
} tuner_weights;
/* Storage of tensor number `index` of a kernel; NONE if it contains unquantised elements, or if the pack does not
 * record it (index version 5 or earlier). */
tuner_status tuner_layer_weights_at(const tuner_pack *pack, const tuner_attention_choice *choice, uint32_t index,
                                    tuner_weights *weights);
/* One product of a checkpoint on the host, in the checkpoint's layout: row-major and contiguous. */
typedef struct tuner_stored_product {
  const void *codes;    /* qweight, weight_packed, weight, or gpt-oss's blocks */
  const void *scales;   /* scales of the groups, of the type `factors`; null if there are none */
  const void *zeros;    /* qzeros, weight_zero_point; null if there are none */
  const int32_t *order; /* [k], the group of each column (g_idx); null if groups are in order */
  int32_t rows;
} tuner_stored_product;
/* Source of the tensors: GPTQ, whose stored zero points are one less; gptq_v2; AWQ's gemm; compressed-tensors'
 * pack-quantized; e4m3 [rows, k], with one float32 scale per block of 128 x 128, [rows / 128 rounded up, k / 128]; or
 * e2m1 [rows, k / 2] bytes, the first of two codes in the lower bits, with e8m0 [rows, k / 32]. */
enum {
  TUNER_FROM_GPTQ = 1,
  TUNER_FROM_GPTQ_V2 = 2,
  TUNER_FROM_AWQ = 3,
  TUNER_FROM_COMPRESSED = 4,
  TUNER_FROM_E4M3 = 5,
  TUNER_FROM_E2M1 = 6,
};
/* Converts products, stacked along rows (for a gated op the gate first), to the kernel's layout `weights`, on the host.
 * The output has as many bytes as the kernel's tensor. BAD_ARGUMENT, with nothing written, if a scale is not a finite
 * positive number (or a power of two above 2), groups are in activation order, or the products do not match the kernel.
 * */
tuner_status tuner_weights_lay(const tuner_weights *weights, int32_t source, const tuner_stored_product *products,
                               uint32_t num_products, void *into, size_t num_bytes);
/* Like tuner_attention_prepare: all layers of a model may share one. */
typedef struct tuner_layer tuner_layer;
tuner_status tuner_layer_prepare(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                                 uint32_t num_cached, tuner_layer **layer);
/* No launch may be running. */
void tuner_layer_release(tuner_layer *layer);
/* Enqueues the launches, like tuner_ffn_launch. A chain runs with all rows that its kernel supports. `flags`:
 * TUNER_NO_PDL. */
tuner_status tuner_layer_launch(tuner_layer *layer, const tuner_layer_tensors *tensors, void *stream, uint32_t flags);
/* The same for `m` rows of a chain, whose kernel must support them; `m` is 0 for a layer with an attention. */
tuner_status tuner_layer_launch_rows(tuner_layer *layer, int32_t m, const tuner_layer_tensors *tensors, void *stream,
                                     uint32_t flags);
/* Like tuner_attention_refused and tuner_attention_reset. After an abort, rows of the output are NaN, and each key and
 * value of new tokens is correct or NaN; no other line of the cache changes, so the step can be repeated. */
tuner_status tuner_layer_refused(const tuner_layer *layer, void *stream, tuner_attention_refusal *refusal);
tuner_status tuner_layer_reset(tuner_layer *layer, void *stream);

#ifdef __cplusplus
}
#endif
#endif
