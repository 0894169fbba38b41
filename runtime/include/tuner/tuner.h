/* Runs the kernels of a pack: C11 over the CUDA driver API, which is loaded when the first call needs it.
 *
 * Threads. Any number of threads may share a pack. A prepared FFN, attention or layer belongs to one thread at a time and
 * to one stream at a time, since its workspace does.
 * Memory. After it is prepared nothing is allocated, on the host or on the device, until it is released.
 * Graphs. tuner_ffn_launch, tuner_attention_launch and tuner_layer_launch may be captured. Everything else may not.
 * Contexts. Calls work in the thread's current CUDA context, as PyTorch, CuPy and the CUDA runtime make it current. */
#ifndef TUNER_TUNER_H
#define TUNER_TUNER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a struct or a function of this header changes. */
#define TUNER_RUNTIME_ABI 3

typedef enum tuner_status {
  TUNER_OK = 0,
  TUNER_LIBRARY = 1,    /* the vendor's library is as fast or faster for these rows */
  TUNER_NONE = 2,       /* the pack has no answer for this shape and these rows */
  TUNER_ABORTED = 3,    /* a launch gave up; its results are not to be used */
  TUNER_OTHER_CARD = 4, /* the kernels run here, but their speed was measured on a card with another number of SMs */
  TUNER_BAD_ARGUMENT = -1,
  TUNER_BAD_PACK = -2,
  TUNER_NO_DRIVER = -3,
  TUNER_CUDA_ERROR = -4,
  TUNER_MISMATCH = -5, /* the kernel does not run on this device */
  TUNER_NO_MEMORY = -6,
  TUNER_NO_VARIANT = -7, /* the pack does not have the requested build of the kernel */
  TUNER_NEEDS_RESET = -8, /* an earlier call enqueued some of its launches and not the others */
} tuner_status;

enum { TUNER_FP16 = 0, TUNER_BF16 = 1, TUNER_FP8_E4M3 = 4, /* of operands */
       TUNER_FP32 = 2, TUNER_INT32 = 3, TUNER_UINT8 = 5 };  /* only for a layer's tensors */
enum { TUNER_IDENTITY = 0, TUNER_RELU = 1, TUNER_GELU = 2, TUNER_SILU = 3 };
/* Properties of a shape. */
enum { TUNER_GATED = 1, TUNER_BIAS = 2, TUNER_RESIDUAL = 4, TUNER_ROW_SCALE = 8 };
/* Flags of tuner_ffn_prepare. By default the guarded build is prepared. */
enum {
  TUNER_AS_MEASURED = 1, /* the build that was timed: two launches at once go unseen, no abort reaches the host, and a
                            programmatic launch after it begins before the launch before it has ended */
  TUNER_SAFE_WEIGHTS = 2 /* what runs just before in the stream may write the weights */
};
/* Flags of tuner_ffn_launch. */
enum { TUNER_NO_PDL = 1 }; /* a plain launch: it begins when all before it in the stream has ended */

typedef struct tuner_pack tuner_pack;
typedef struct tuner_ffn tuner_ffn;

/* Y[m, d_out] = activation(s X[m, d_in] W1[d_hidden, d_in]^T + b1) W2[d_out, d_hidden]^T + b2 + R. Gated: W1 is
 * [2 d_hidden, d_in] and b1 [2 d_hidden], the gate's rows above the up projection's, and activation(gate) * up. GELU is
 * the tanh form. */
typedef struct tuner_shape {
  int32_t dtype, activation, d_in, d_hidden, d_out;
  uint32_t flags;
} tuner_shape;

/* The pack's choice for a shape and its rows. */
typedef struct tuner_choice {
  uint32_t kernel;       /* its number in the pack */
  int32_t m_lo, m_hi;    /* the rows that it was chosen for */
  double speedup;        /* the library's time over the kernel's; 0 where nothing was measured */
  size_t memory_bytes;   /* of the device, which tuner_ffn_prepare takes */
  const char *text;      /* the plan kind and the schedule, or the library's recipe; of the pack */
  uint8_t digest[32];    /* sha256 of the kernel's manifest */
} tuner_choice;

/* Device addresses, each a multiple of 16; row-major and contiguous. Null where the shape has none. `hidden` is room for
 * the intermediate [m, d_hidden]; launches that follow each other in one stream may share it. `residual` may be `y`; no
 * other two may overlap where one is written.
 * A launch checks what an address tells: null where the shape has the tensor, its alignment, and by the shape's sizes and
 * m that `hidden` and `y` overlap nothing but that residual. The memory there cannot be checked: that it has as many bytes
 * and this element type, on this device, is the caller's promise. Tensors that the shape has not are not looked at. */
typedef struct tuner_tensors {
  const void *x, *w1, *w2, *b1, *b2, *residual;
  const float *row_scale;
  void *hidden, *y;
} tuner_tensors;

/* Whose wait expired, and why. */
typedef struct tuner_abort_record {
  int32_t task;   /* of the plan; -1: the start gate; -2: two launches ran at once on one workspace */
  int32_t signal; /* that was waited for; -1 for none: the start gate, or a task that reads in band */
  uint32_t seen, expected;
  int32_t cta;
} tuner_abort_record;

/* The last failure of this thread, as a sentence; never null. */
const char *tuner_error(void);
/* The driver's library; by default libcuda.so.1, before the first call that needs it. For tests, and odd places. */
tuner_status tuner_load_driver(const char *path);

/* Every byte is checked before anything of it is used. */
tuner_status tuner_pack_open(const char *path, tuner_pack **pack);
/* The bytes of a pack, which stay where they are until it is closed and all that was prepared of it is released. */
tuner_status tuner_pack_open_bytes(const void *bytes, size_t num_bytes, tuner_pack **pack);
/* Nothing more is prepared of it. What was prepared runs on, until it is released. */
void tuner_pack_close(tuner_pack *pack);
/* Whether all of its kernels run on a device (OK), do so at other speeds (OTHER_CARD), or do not (MISMATCH): also where the
 * device does not hold the CTAs, or clusters, that a kernel needs resident at once. Kernels are loaded for that question, into
 * the current context where it is the device's, else into its primary one. */
tuner_status tuner_pack_check(const tuner_pack *pack, int device);
/* Shape number `index`, and how many there are; its rows end at `m_hi`. */
tuner_status tuner_pack_shape(const tuner_pack *pack, uint32_t index, tuner_shape *shape, uint32_t *num_shapes);

/* OK, LIBRARY or NONE; BAD_ARGUMENT for a shape that no pack can have: another dtype, activation or flag than those above,
 * or a size below 1. Also for NONE, `m_lo` and `m_hi` are rows that have the same answer. */
tuner_status tuner_ffn_find(const tuner_pack *pack, const tuner_shape *shape, int32_t m, tuner_choice *choice);
/* Loads the kernel into the current context, and lays plans and workspaces out in `memory`: device memory, a multiple of
 * 256, of choice.memory_bytes. Ends when all is there. `num_cached`: how many sets of addresses and rows are kept ready;
 * 0 for 64. */
tuner_status tuner_ffn_prepare(tuner_pack *pack, const tuner_choice *choice, void *memory, void *stream, uint32_t flags,
                               uint32_t num_cached, tuner_ffn **ffn);
/* No launch may be running. */
void tuner_ffn_release(tuner_ffn *ffn);
/* Enqueues it for `m` rows, which the kernel must serve. Where the driver refuses, nothing was enqueued, or the sentence says
 * that some launches were: then every call is NEEDS_RESET until the reset. MISMATCH where the stream, e.g. one of a green
 * context, runs on too few SMs; not told while it is captured. */
tuner_status tuner_ffn_launch(tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors, void *stream, uint32_t flags);
/* The same; its arguments are in memory, for languages in which each argument of a call costs time. */
typedef struct tuner_launch {
  tuner_ffn *ffn;
  void *stream;
  int32_t m;
  uint32_t flags;
  tuner_tensors tensors;
} tuner_launch;
tuner_status tuner_ffn_launch_from(const tuner_launch *launch);

/* ABORTED and the record if a launch was aborted since the last reset, else OK. Calls no driver: it may be called at
 * any time, also while launches run. */
tuner_status tuner_abort_poll(const tuner_ffn *ffn, tuner_abort_record *record);
/* After an abort, or a call that was enqueued in part: waits for `stream`, and makes the workspaces as new. No launch may be
 * under way elsewhere. */
tuner_status tuner_reset(tuner_ffn *ffn, void *stream);

/* Decode attention: of each sequence the last `new_tokens` tokens of its length attend to all up to their own, and the
 * projection of these rows where d_out is not 0. Y[sequences * new_tokens, d_out or heads * head_dim]. */
typedef struct tuner_attention_shape {
  int32_t dtype, heads, kv_heads, head_dim, new_tokens;
  int32_t page_tokens; /* of a page of the cache; 0: the cache is contiguous */
  uint32_t flags;      /* TUNER_HEADS_FIRST; of a contiguous cache always */
  int32_t window;      /* tokens that a query sees; 0 for all */
  int32_t d_out;       /* columns of the projection; 0 for none */
  float scale;         /* of the scores, e.g. 1 / sqrt(head_dim) */
  float soft_cap;      /* of the scores; 0 for none */
} tuner_attention_shape;
/* A page is [kv_heads, page_tokens, head_dim], and without it [page_tokens, kv_heads, head_dim]. */
enum { TUNER_HEADS_FIRST = 1 };

/* The pack's choice for a shape, sequences and a context. */
typedef struct tuner_attention_choice {
  uint32_t program;      /* its number in the pack */
  int32_t sequences;
  int32_t max_length;    /* tokens of the longest context that it serves; of a contiguous cache the rows of a head */
  double speedup;        /* the library's time over the kernel's; 0 where nothing was measured */
  size_t memory_bytes;   /* of the device, which tuner_attention_prepare takes */
  const char *text;      /* the plan kind and the schedule, or the library's recipe; of the pack */
  uint8_t digest[32];    /* sha256 of the artifact's manifest */
} tuner_attention_choice;

/* Device addresses, each a multiple of 16; row-major and contiguous. Null where the shape has none. Nothing may overlap
 * `y`. A launch checks null and alignment; sizes, element types and overlaps are the caller's promise. The new tokens' keys and values are in the cache before the launch. Memory after a length is not used. */
typedef struct tuner_attention_tensors {
  const void *q;           /* [sequences * new_tokens, heads * head_dim] */
  const void *keys, *values; /* [sequences, kv_heads, max_length, head_dim], or [num_pages, a page] */
  const int32_t *lengths;  /* of each sequence, new tokens included; 0: its rows become zeros */
  const int32_t *pages;    /* the table [sequences, ceil(max_length / page_tokens)] of a cache with pages */
  const void *w;           /* the projection's [d_out, heads * head_dim] */
  void *y;
  int64_t num_pages;       /* of the cache; 0 where it has none */
} tuner_attention_tensors;

/* The first invalid input of a launch, since the last reset. */
typedef struct tuner_attention_refusal {
  int32_t kind;     /* 1: a length, 2: a page's number; -1: a launch of products was aborted, and its rows are NaN */
  int32_t sequence;
  int32_t value;    /* it, which was read as the nearest that is right; of a page as zeros */
  int32_t end;      /* what is right is 0 to end - 1 */
} tuner_attention_refusal;

/* Shape number `index`, and how many there are; its table ends at TUNER_NONE. */
tuner_status tuner_pack_attention(const tuner_pack *pack, uint32_t index, tuner_attention_shape *shape,
                                  uint32_t *num_shapes);
/* OK, LIBRARY or NONE: of this many sequences, what serves contexts up to `length` with the least room beyond it.
 * BAD_ARGUMENT for a shape that no pack can have, no sequence, or a negative length. */
tuner_status tuner_attention_find(const tuner_pack *pack, const tuner_attention_shape *shape, int32_t sequences,
                                  int32_t length, tuner_attention_choice *choice);
/* As tuner_ffn_prepare. All layers of a model may share one: their launches follow each other in one stream. The builds
 * are those that were timed. */
typedef struct tuner_attention tuner_attention;
tuner_status tuner_attention_prepare(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                                     uint32_t num_cached, tuner_attention **attention);
/* No launch may be running. */
void tuner_attention_release(tuner_attention *attention);
/* Enqueues it, as tuner_ffn_launch. `flags`: TUNER_NO_PDL. */
tuner_status tuner_attention_launch(tuner_attention *attention, const tuner_attention_tensors *tensors, void *stream,
                                    uint32_t flags);
/* ABORTED and what was refused, else OK. Waits for `stream`. */
tuner_status tuner_attention_refused(const tuner_attention *attention, void *stream, tuner_attention_refusal *refusal);
/* Waits for `stream`, and makes the memory as new. No launch may be under way elsewhere. */
tuner_status tuner_attention_reset(tuner_attention *attention, void *stream);

/* A decode step of a layer, or of a run of it: products around an attention, e.g. norm, qkv, attention and o_proj; or a chain
 * of only products, e.g. norm, gate_up and down: `heads` is 0 then, and all products are in front. */
typedef struct tuner_layer_shape {
  tuner_attention_shape attention; /* d_out: columns of the last op; for rotated heads, those of the queries */
  int32_t d_in;                    /* columns of what the first op reads */
  int32_t num_in_front;            /* products before the attention */
  int32_t num_products;
  const char *ops;                 /* the names of all ops, in order, with blanks between; of the pack */
} tuner_layer_shape;

/* A tensor that a launch is given. */
typedef struct tuner_layer_tensor {
  const char *name;   /* as the artifact's manifest has it, e.g. "qkv.w"; of the pack */
  const char *role;   /* input, input_squares, weight, bias, residual, row_scale, cache, lengths, pages, frequencies, output */
  int32_t dtype, rank;
  int32_t dims[4];    /* where a chain serves fewer rows, the most of them */
  int32_t has_pages;  /* whether dims[0] may be another: it is the number of pages */
} tuner_layer_tensor;

/* Device addresses, each a multiple of 16, in the order of tuner_layer_tensor_at; row-major and contiguous. A launch checks
 * their number, null and alignment; sizes, element types and overlaps are the caller's promise. What only the
 * launches pass to each other is in the layer's own memory. Where a product before the attention rotates queries and
 * keys, it writes keys and values of the new tokens to the cache; else they are there before the launch. */
typedef struct tuner_layer_tensors {
  const void *const *addresses;
  uint32_t num_addresses;
  int64_t num_pages; /* of the cache; 0 where it has none */
} tuner_layer_tensors;

/* Layer number `index`, and how many there are; its table ends at TUNER_NONE. */
tuner_status tuner_pack_layer(const tuner_pack *pack, uint32_t index, tuner_layer_shape *shape, uint32_t *num_layers);
/* As tuner_attention_find, of layer number `index`; of a chain for this many rows, and `length` says nothing. */
tuner_status tuner_layer_find(const tuner_pack *pack, uint32_t index, int32_t sequences, int32_t length,
                              tuner_attention_choice *choice);
/* Tensor number `index` of a choice that is a kernel; after the last one NONE. */
tuner_status tuner_layer_tensor_at(const tuner_pack *pack, const tuner_attention_choice *choice, uint32_t index,
                                   tuner_layer_tensor *tensor);
/* How weights are stored in fewer bits: as one tensor of bytes [rows, bytes of a row]. */
typedef struct tuner_weights {
  const char *format;  /* e.g. "int4_g128_zp"; these texts are of the pack */
  const char *layout;  /* name of the layout of codes and factors; tuner_weights_lay knows those of this version's kernels */
  const char *factors; /* element type of a group's factor, e.g. "bf16"; empty where groups have none */
  int32_t bits, group; /* of a code; weights of a row that share a factor, 0 where none do */
  int32_t has_zeros;   /* whether each group of a row has a zero point */
  int32_t rows, k;     /* weights of a row */
} tuner_weights;
/* Of tensor number `index` of a choice that is a kernel; NONE where it holds elements, or where the pack was written before
 * packs recorded it (an index of version 5 or less). */
tuner_status tuner_layer_weights_at(const tuner_pack *pack, const tuner_attention_choice *choice, uint32_t index,
                                    tuner_weights *weights);
/* One product of a checkpoint on the host, as the checkpoint has it: row-major, nothing between. */
typedef struct tuner_stored_product {
  const void *codes;    /* qweight, weight_packed, weight, or gpt-oss's blocks */
  const void *scales;   /* of groups, of the type `factors`; null where there are none */
  const void *zeros;    /* qzeros, weight_zero_point; null where there are none */
  const int32_t *order; /* [k], the group of each column (g_idx); null where they are in order */
  int32_t rows;
} tuner_stored_product;
/* Whose tensors: of GPTQ, whose stored zero points are one less, and of gptq_v2, of AWQ's gemm, of compressed-tensors'
 * pack-quantized, e4m3 [rows, k], or e2m1 [rows, k / 2] bytes, of two the lower bits first, with e8m0 [rows, k / 32]. */
enum {
  TUNER_FROM_GPTQ = 1,
  TUNER_FROM_GPTQ_V2 = 2,
  TUNER_FROM_AWQ = 3,
  TUNER_FROM_COMPRESSED = 4,
  TUNER_FROM_E4M3 = 5,
  TUNER_FROM_E2M1 = 6,
};
/* Lays products out above each other (of a gated op the gate's first) as a kernel reads `weights`, into as many bytes as
 * its tensor has, on the host. BAD_ARGUMENT, and nothing is written, where a scale is no finite number above 0 (a power
 * of two above 2), groups are in activation order, or products are not what the kernel reads. */
tuner_status tuner_weights_lay(const tuner_weights *weights, int32_t source, const tuner_stored_product *products,
                               uint32_t num_products, void *into, size_t num_bytes);
/* As tuner_attention_prepare: all layers of a model may share one. */
typedef struct tuner_layer tuner_layer;
tuner_status tuner_layer_prepare(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                                 uint32_t num_cached, tuner_layer **layer);
/* No launch may be running. */
void tuner_layer_release(tuner_layer *layer);
/* Enqueues it, as tuner_ffn_launch; a chain for all rows that its kernel serves. `flags`: TUNER_NO_PDL. */
tuner_status tuner_layer_launch(tuner_layer *layer, const tuner_layer_tensors *tensors, void *stream, uint32_t flags);
/* The same of a chain for `m` rows, which its kernel must serve; of a layer with an attention 0. */
tuner_status tuner_layer_launch_rows(tuner_layer *layer, int32_t m, const tuner_layer_tensors *tensors, void *stream,
                                     uint32_t flags);
/* As tuner_attention_refused and tuner_attention_reset. After an abort rows of the launch are NaN, and keys and values of
 * new tokens are NaN or right; no other line of the cache changes, so the step may run again. */
tuner_status tuner_layer_refused(const tuner_layer *layer, void *stream, tuner_attention_refusal *refusal);
tuner_status tuner_layer_reset(tuner_layer *layer, void *stream);

#ifdef __cplusplus
}
#endif
#endif
