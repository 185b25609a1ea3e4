#!/bin/sh
# heddle's images (@TAG@) and chart, for sites without a network.
#
#   heddle-images.run push [docker|nerdctl|ctr|crane] DOMAIN/PROJECT
#   heddle-images.run unpack DIRECTORY
#
# Without the name of an engine, the images go to the registry by themselves,
# for both architectures, with the credentials of ~/.docker/config.json.
# REGISTRY_INSECURE=1 is for a registry without TLS.
set -eu

images="@IMAGES@"
tag="@TAG@"

usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }

# The archive begins after its marker.
unpack() {
  mkdir -p "$1"
  tail -n +"$(($(grep -n -a -m 1 '^__ARCHIVE__$' "$0" | cut -d: -f1) + 1))" "$0" | tar -xzf - -C "$1"
}

push() {
  engine=
  case "${1:-}" in docker | nerdctl | ctr | crane) engine=$1; shift ;; esac
  [ $# = 1 ] || usage
  to=$1
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  unpack "$dir"
  case "$(uname -m)" in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch= ;; esac
  if [ -z "$engine" ]; then
    [ -n "$arch" ] || { echo "no pusher for $(uname -m): name docker, nerdctl, ctr or crane" >&2; exit 1; }
    "$dir/push-$arch" push -from "$dir/images" ${REGISTRY_INSECURE:+-insecure} "$to"
  else
    for image in $images; do
      ref=$to/$image:$tag
      case "$engine" in
      crane) crane push ${REGISTRY_INSECURE:+--insecure} --index "$dir/images/$image" "$ref" ;;
      ctr | nerdctl)
        tar -cf "$dir/image.tar" -C "$dir/images/$image" .
        ctr images import --all-platforms --base-name "heddle/$image" "$dir/image.tar"
        ctr images tag --force "heddle/$image:$tag" "$ref"
        if [ "$engine" = ctr ]; then ctr images push ${REGISTRY_INSECURE:+--plain-http} "$ref"
        else nerdctl push ${REGISTRY_INSECURE:+--insecure-registry} --all-platforms "$ref"; fi ;;
      docker)
        tar -cf "$dir/image.tar" -C "$dir/images/$image" .
        loaded=$(docker load -i "$dir/image.tar" | sed -n 's/^Loaded image\( ID\)\{0,1\}: //p' | head -1)
        docker tag "$loaded" "$ref"
        docker push "$ref" ;;
      esac
    done
  fi
  echo "then: $0 unpack DIR && helm install heddle DIR/chart --set image.repository=$to --set image.tag=$tag"
}

case "${1:-}" in
docker | nerdctl | ctr | crane) # The engine before the command, as other suites have it.
  engine=$1
  [ "${2:-}" = push ] || usage
  shift 2
  push "$engine" "$@" ;;
push) shift; push "$@" ;;
unpack) [ $# = 2 ] || usage; unpack "$2" ;;
*) usage ;;
esac
exit 0
__ARCHIVE__
