#!/usr/bin/env bash
# Builds the images for `make images`: images.sh VERSION ARCH. Debian and Ubuntu build them here; other machines, such as
# Fedora and macOS, in a container of Debian, whose C compilers and packages take the place of their own.
set -euo pipefail
cd "$(dirname "$0")/.."
build=(go run -C tools/release . images -root "$PWD" -out "$PWD/dist/images" -version "$1" -arch "$2")
if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
  exec "${build[@]}"
fi
mkdir -p dist/images # else the container's root would own it
for engine in docker podman; do
  if command -v "$engine" >/dev/null; then
    # The clone has the same path inside, so that git and the arguments above fit. The caches are volumes.
    exec "$engine" run --rm --security-opt label=disable -v "$PWD:$PWD" -w "$PWD" -v heddle-go:/go -v heddle-cache:/cache -e XDG_CACHE_HOME=/cache \
      -e GIT_CONFIG_COUNT=1 -e GIT_CONFIG_KEY_0=safe.directory -e GIT_CONFIG_VALUE_0='*' "${GO_IMAGE:-golang:1.26-bookworm}" \
      bash -ec 'apt-get update -qq
        case $(dpkg --print-architecture) in
          amd64) apt-get install -qq -y --no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross ;;
          arm64) apt-get install -qq -y --no-install-recommends gcc-x86-64-linux-gnu libc6-dev-amd64-cross ;;
        esac >/dev/null
        "$@"
        chown -R --reference=. dist/images' images "${build[@]}"
  fi
done
echo "the images need apt-get and dpkg-deb, as Debian and Ubuntu have them, or docker or podman" >&2
exit 1
