#!/bin/bash
# Every row's variants, each in a process with a limit; one that is lost runs again without words.
builds=build/chain-variants out=$1
for row in llama3-70b-tp8-synthetic/m1 llama3-70b-tp8-synthetic/m16 llama3-70b-tp8-synthetic/m64 llama3-8b/m64 \
  llama3-70b-tp8-run/m16 llama3-8b/m16; do
  file=$out/${row//\//-}
  timeout 60 ${PY:-python3} -m benchmarks.chains.variants --builds $builds --row $row --out $file.json ||
    timeout 45 ${PY:-python3} -m benchmarks.chains.variants --builds $builds --row $row --skip words --out $file.plain.json
done
