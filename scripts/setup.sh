#!/usr/bin/env bash
# Installs what the build needs on Debian and Ubuntu, if it is not there. The README says what each is for.
set -euo pipefail

packages=(g++ make cmake ninja-build libboost-context-dev libcli11-dev libgtest-dev)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: no apt-get here; please install: ${missing[*]}" >&2
  exit 1
fi
echo "setup: installing ${missing[*]}"
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
