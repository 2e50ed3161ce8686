#!/bin/bash
# A plain job: start all ranks, and end all of them as soon as one fails. What starts it again is a shell loop.
# Usage: goodput_loop.sh RANKS PORT PROGRAM...
ranks=$1 port=$2
shift 2
export WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
for ((rank = 0; rank < ranks; rank++)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
done
code=0
for ((ended = 0; ended < ranks; ended++)); do
  wait -n || { code=1; break; }
done
kill -KILL $(jobs -p) 2>/dev/null
wait
exit $code
