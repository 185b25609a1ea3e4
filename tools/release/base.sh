#!/usr/bin/env bash
# base.sh ARCH DIR: the base layer of the images in DIR, from the newest Debian packages of any architecture. The programs
# need the C library, that NVML is loaded with, and the certificate authorities. The user's cache keeps the packages for a
# day, and longer while there is no mirror. Scanners of images find the packages in var/lib/dpkg/status.d, and the
# distribution, which is this machine's, in etc/os-release.
# base.sh --trim DIR: the last step alone.
set -euo pipefail
umask 022

# download fetches packages by apt-get; the machine's package lists do not change.
download() {
  local temp
  mkdir -p "$(dirname "$2")"
  temp=$(mktemp -d -p "$(dirname "$2")")
  mkdir -p "$temp"/{lists/partial,cache/archives/partial,debs}
  touch "$temp/status"
  for command in update "download libc6 ca-certificates"; do
    # shellcheck disable=SC2086 # Words of a command.
    (cd "$temp/debs" && apt-get -qq -o APT::Architecture="$1" -o APT::Architectures="$1" -o APT::Sandbox::User=root \
      -o Dir::State::lists="$temp/lists" -o Dir::State::status="$temp/status" -o Dir::Cache="$temp/cache" $command) >&2 ||
      { echo "apt-get ${command%% *} failed" >&2; rm -rf "$temp"; return 1; }
  done
  rm -rf "$2"
  mv "$temp/debs" "$2"
  rm -rf "$temp"
}

# trim keeps the C library, joins the certificate authorities, as a script of Debian's does, and adds the user of the
# programs.
trim() {
  mkdir -p etc/ssl/certs
  for authority in usr/share/ca-certificates/mozilla/*.crt; do
    [[ -e $authority ]] || { echo "ca-certificates has no authorities" >&2; exit 1; }
    sed -e '$a\' "$authority"
  done >etc/ssl/certs/ca-certificates.crt
  rm -rf usr/share/{ca-certificates,man,lintian} usr/sbin etc/ca-certificates {,usr/}lib/*/gconv usr/lib/*/audit
  printf 'root:x:0:0:root:/:/\nheddle:x:65532:65532:heddle:/:/\n' >etc/passwd
  printf 'root:x:0:\nheddle:x:65532:\n' >etc/group
  echo 'hosts: files dns' >etc/nsswitch.conf
  # If a package has nothing in /lib and /lib64, they are links to directories in /usr, which another package creates.
  for name in lib lib64; do
    [[ -e $name || ! -e usr/$name ]] || ln -s "usr/$name" "$name"
  done
  mkdir -p tmp
  chmod 1777 tmp
}

if [[ $1 != --trim ]]; then
  debs=${XDG_CACHE_HOME:-$HOME/.cache}/heddle/images/$1
  if [[ -z $(find "$debs" -maxdepth 0 -mtime -1 2>/dev/null) ]]; then
    download "$1" "$debs" || [[ -d $debs ]] || exit 1
  fi
  mkdir -p "$2"/etc "$2"/var/lib/dpkg/status.d
  cp -L /etc/os-release "$2/etc/os-release"
  for file in "$debs"/*.deb; do
    dpkg-deb -x "$file" "$2"
    dpkg-deb -f "$file" >"$2/var/lib/dpkg/status.d/$(dpkg-deb -f "$file" Package)"
  done
fi
cd "$2"
trim
