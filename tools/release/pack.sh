#!/usr/bin/env bash
# pack.sh cli DIR VERSION [GOOS/GOARCH...]: an archive of the CLI for each platform, and the checksums of all. They are
# built without cgo: the CLI reads NVML only on a node, from its image.
# pack.sh bundle LAYOUTS FILE: one file for sites without a network, a shell script followed by an archive of the
# images, the chart and the program that pushes them. It needs a shell and tar, and pushes without a container engine.
set -euo pipefail
umask 022
export CGO_ENABLED=0
arguments=("$@")
for i in 1 2; do # Paths are the caller's.
  [[ ${arguments[i]} == /* || $1 == cli && $i == 2 ]] || arguments[i]=$PWD/${arguments[i]}
done
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"

# compressed is the directory as a reproducible tar.gz: sorted names, owner root, one time.
compressed() {
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=posix \
    --pax-option='delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f' --hard-dereference -C "$dir" -cf - . | gzip -n
}

build() { # FOLDER FILE GOOS/GOARCH LDFLAGS
  GOOS=${3%/*} GOARCH=${3#*/} go build -C "$1" -trimpath -buildvcs=false -tags grpcnotrace -ldflags "-s -w -buildid= ${4:-}" -o "$2" .
}

cli() { # DIR VERSION [GOOS/GOARCH...]
  local out=$1 version=$2
  shift 2
  (($#)) || set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
  mkdir -p "$out"
  cp LICENSE "$dir"
  ln -s heddle "$dir/kubectl-heddle" # kubectl runs a program of this name as `kubectl heddle`.
  for platform; do
    build cmd/heddle "$dir/heddle" "$platform" "-X main.version=$version"
    compressed >"$out/heddle_${version}_${platform/\//_}.tar.gz"
  done
  cd "$out"
  sha256sum -- "heddle_${version}"_*.tar.gz | tee checksums.txt
}

bundle() { # LAYOUTS FILE
  local names=() tag
  for layout in "$1"/*/oci-layout; do
    [[ -e $layout ]] || { echo "no images in $1: make images" >&2; exit 1; }
    layout=$(dirname "$layout")
    names+=("$(basename "$layout")")
    tag=$(grep -o '"org.opencontainers.image.ref.name": *"[^"]*"' "$layout/index.json" | cut -d'"' -f4)
    mkdir -p "$dir/images"
    cp -r "$layout" "$dir/images/"
  done
  cp -r deploy/helm/heddle "$dir/chart"
  for arch in amd64 arm64; do # This program pushes, on either architecture.
    build tools/release "$dir/push-$arch" "linux/$arch"
  done
  mkdir -p "$(dirname "$2")"
  { sed -e "s|@IMAGES@|${names[*]}|" -e "s|@TAG@|$tag|" tools/release/bundle.sh; compressed; } >"$2"
  chmod 755 "$2"
  echo "$2"
}

"${arguments[@]}"
