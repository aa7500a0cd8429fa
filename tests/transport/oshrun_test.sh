#!/usr/bin/env bash
# Runs the command under a launcher of OpenSHMEM.
#   oshrun_test.sh PATH/TO/switchyard TEST
# Exit code 77: it cannot be tested here, for the reason that is printed.
set -uo pipefail
tool=$1 test=$2
folder=$(dirname "$tool")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "FAILED: $*" >&2; sed 's/^/  | /' "$work/out" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
shape=(--target host --experts 8 --top-k 2 --hidden 128 --expert-width 16)
tokens=(--tokens-per-rank 5,0,7,3)
bench=(--target host --experts 8 --top-k 2 --hidden 128 --replays 2 --mode fused)
launcher=()
# Runs 4 ranks; what they print, and how the launcher ended, is left in $work.
launch() {
  timeout 60 oshrun --oversubscribe "${launcher[@]}" -np 4 "$tool" run --transport shmem "${shape[@]}" "${tokens[@]}" "$@" \
    >"$work/out" 2>&1
  code=$?
  [ $code -ne 124 ] || fail "run $*: hangs"
}
must_verify() {
  launch "$@"
  [ $code -eq 0 ] || fail "run $*: exit code $code"
  [ "$(grep -c '^  verified' "$work/out")" = 1 ] || fail "run $*: not one table that is verified"
}
must_say() { grep -qF -- "$1" "$work/out" || fail "does not say: $1"; }

RanksReachEachOtherByMemory() {
  for protocol in slotted direct; do
    must_verify --protocol $protocol
    must_say "transport shmem"
    ! grep -q "^  groups" "$work/out" || fail "there are groups"
  done
}

GroupsUseTheWire() {
  for protocol in slotted direct; do
    for group in 1 2; do
      must_verify --protocol $protocol --p2p-world-size $group --steps 3
      must_say "groups    of $group rank"
    done
  done
}

FormatsOfEachLayout() {
  must_verify --p2p-world-size 2 --protocol direct --format fp8 --combine-format fp8 --shared-expert
  must_verify --p2p-world-size 1 --protocol slotted --format mxfp8
  must_verify --p2p-world-size 1 --protocol direct --format nvfp4-by-expert --mode fused
  must_verify --p2p-world-size 2 --protocol direct --format mxfp8-tiled
  must_verify --p2p-world-size 2 --protocol direct --format fp8-ue8m0
  tokens=(--tokens 5)
  must_verify --skip-a2a
}

# With no more options than people are told to give. (On a machine with a GPU, that is where it runs otherwise.)
TheDefaultsWork() {
  timeout 110 oshrun --oversubscribe -np 4 "$tool" run --transport shmem --target host >"$work/out" 2>&1
  code=$?
  [ $code -eq 0 ] || fail "exit code $code"
  must_say "  verified"
}

# No memory is shared: every rank is a group.
OverSocketsOnly() {
  export UCX_TLS=tcp,self
  must_verify --protocol direct
  must_say "groups    of 1 rank"
  must_verify --protocol slotted
  launch --p2p-world-size 2
  [ $code -ne 0 ] || fail "groups of 2 are not refused"
  must_say "--p2p-world-size is 2, but rank 0 does not reach the memory of rank 1"
}

# Two network namespaces, joined by a cable, with two ranks each.
TwoNodes() {
  [ "$(id -u)" -eq 0 ] || skip "only root can make network namespaces"
  command -v ip >/dev/null || skip "there is no ip (Debian: iproute2)"
  local a=swyA$$ b=swyB$$
  { ip netns add $a && ip netns add $b; } 2>"$work/out" || skip "no network namespaces: $(cat "$work/out")"
  trap 'ip netns del '$a'; ip netns del '$b'; rm -rf "$work"' EXIT
  ip link add swya$$ netns $a type veth peer name swyb$$ netns $b 2>"$work/out" ||
    skip "no veth pairs: $(cat "$work/out")"
  ip -n $a addr add 10.231.7.1/24 dev swya$$
  ip -n $b addr add 10.231.7.2/24 dev swyb$$
  for link in "$a swya$$" "$b swyb$$"; do
    set -- $link
    ip -n $1 link set lo up
    ip -n $1 link set $2 up
  done
  # A link is of use a moment after both ends are up; who looks too early does not see it.
  for link in "$a swya$$" "$b swyb$$"; do
    set -- $link
    for _ in $(seq 50); do
      ip -n $1 link show $2 | grep -q "state UP" && break
      sleep 0.1
    done
  done
  # What oshrun starts instead of a remote shell: the words behind the node's name, in its namespace.
  printf '#!/bin/sh\nshift\nexec ip netns exec %s unshare --uts --ipc sh -c "hostname nodeb; $*"\n' $b >"$work/agent"
  chmod +x "$work/agent"
  printf '10.231.7.1 slots=2\n10.231.7.2 slots=2\n' >"$work/hosts"
  on_both_nodes() {
    timeout 60 ip netns exec $a oshrun --hostfile "$work/hosts" --mca plm_rsh_agent "$work/agent" \
      --mca btl_tcp_if_include 10.231.7.0/24 --mca oob_tcp_if_include 10.231.7.0/24 -np 4 "$tool" "$@" --transport shmem \
      --protocol direct >"$work/out" 2>&1
    code=$?
    [ $code -eq 0 ] || fail "$1: exit code $code"
    must_say "groups    of 2 ranks"
  }
  on_both_nodes run "${shape[@]}" "${tokens[@]}"
  must_say "  verified"
  # One process for all ranks would be on one machine: there is nothing to compare with.
  on_both_nodes bench ep "${bench[@]}" --tokens 2
  must_say "transport shmem, a process for every rank on 2 machines"
  ! grep -q "x local" "$work/out" || fail "there is a local transport"
  must_say "verified: every output"
}

ABenchmarkHasTheLocalTransportBeside() {
  timeout 60 oshrun --oversubscribe -np 4 "$tool" bench ep --transport shmem "${bench[@]}" --tokens 1,3 --p2p-world-size 2 \
    --json "$work/json" >"$work/out" 2>&1 || fail "exit code $?"
  must_say "transport local; and shmem, a process for every rank on 1 machine"
  must_say "shmem us  x local"
  must_say "groups    of 2 ranks"
  must_say "verified: every output"
  for key in transport shmem_us start_skew_us from_last_start_us join_ms; do
    grep -q "\"$key\": " "$work/json" || fail "the JSON has no $key"
  done
  timeout 60 oshrun --oversubscribe -np 2 "$tool" bench ep --transport shmem "${bench[@]}" --ranks 3 >"$work/out" 2>&1
  [ $? -eq 2 ] || fail "--ranks 3: exit code $?"
  must_say "switchyard bench ep: --ranks: 3 given; the launcher has started 2 processes"
}

ADeadRankIsNamed() {
  launcher=(--enable-recovery)
  local begin=$SECONDS  # the deadline is 2 s; the rest is for a busy machine
  # Rank 1 has sent its tokens when it dies, so that all have come to the step, but no expert rows, of which each
  # survivor wants some.
  local tokens=(--tokens-per-rank 40,0,40,40)
  launch --kill 1@combine_async --deadline-ms 2000 --p2p-world-size 2 --protocol slotted --seed $$
  [ "$(grep -c '^switchyard run: .*rank 1 is dead, stuck' "$work/out")" -ge 2 ] || fail "survivors do not name rank 1"
  [ $((SECONDS - begin)) -le 22 ] || fail "it took $((SECONDS - begin)) s"
  sleep 0.2
  ! pgrep -f "$tool run .* --seed $$" >/dev/null || fail "processes are left"  # of others of these tests there may be
  # Without recovery the launcher ends the others.
  launcher=() begin=$SECONDS
  launch --kill 1@combine_async --deadline-ms 800 --p2p-world-size 1
  [ $code -ne 0 ] || fail "exit code 0"
  [ $((SECONDS - begin)) -le 21 ] || fail "without recovery it took $((SECONDS - begin)) s"
}

DifferencesAreRefused() {
  timeout 60 oshrun --oversubscribe -np 2 "$tool" run --transport shmem "${shape[@]}" : \
    -np 2 "$tool" run --transport shmem "${shape[@]}" --format fp8 >"$work/out" 2>&1
  [ $? -ne 0 ] || fail "exit code 0"
  must_say "--format is"
  must_say "there and"
}

BadInputIsRefused() {
  launch --ranks 3
  [ $code -eq 2 ] || fail "--ranks 3: exit code $code"
  must_say "switchyard run: --ranks: 3 given; the launcher has started 4 processes"
  [ "$(grep -c '^switchyard run: ' "$work/out")" = 1 ] || fail "it is said more than once"
  # 16 MiB are enough to meet, but not for the arenas.
  tokens=(--tokens 8192)
  SHMEM_SYMMETRIC_HEAP_SIZE=16M launch
  [ $code -ne 0 ] || fail "a heap that is too small: exit code 0"
  must_say "SHMEM_SYMMETRIC_HEAP_SIZE is 16M: it must be larger"
  # Without a launcher a process is alone.
  timeout 60 "$tool" run --transport shmem --experts 8 --top-k 2 --hidden 64 --expert-width 16 --tokens 5 \
    >"$work/out" 2>&1 || fail "without a launcher: exit code $?"
  must_say "over 1 rank"
}

NoPluginIsSaid() {
  mkdir "$work/alone"
  cp "$tool" "$work/alone/switchyard"
  "$work/alone/switchyard" run --transport shmem --target host >"$work/out" 2>&1
  [ $? -eq 3 ] || fail "exit code is not 3"
  [ "$(wc -l <"$work/out")" = 1 ] || fail "not one line"
  must_say "no libswitchyard_openshmem.so in"
  must_say "openmpi-bin libopenmpi-dev"
  # One that is found by the variable, and is no plugin.
  : >"$work/libswitchyard_openshmem.so"
  SWITCHYARD_PLUGIN_PATH=$work "$work/alone/switchyard" run --transport shmem --target host >"$work/out" 2>&1
  must_say "the SHMEM plugin does not load"
}

if [ "$test" != NoPluginIsSaid ]; then
  command -v oshrun >/dev/null || skip "there is no oshrun (Debian: openmpi-bin)"
  [ -e "$folder/libswitchyard_openshmem.so" ] || skip "the OpenSHMEM plugin is not in this build"
fi
"$test"
