#!/usr/bin/env bash
# Vets, tests and lints the Go packages that differ from BASE (default: HEAD),
# for `make check`. Of a nested module it vets and tests all, and lints those that
# `make lint` lints; those of test/cluster/build are built by the tests alone.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${BASE:-HEAD}
lint=(go tool -modfile="$PWD/tools/lint/go.mod" golangci-lint run --new-from-rev="$base")

changed() { # Deleted files too: what is left of their package has changed.
  git diff --name-only --no-renames "$base" -- '*.go'
  git ls-files --others --exclude-standard -- '*.go'
}
module() { # prints the folder of the go.mod that a folder belongs to
  local dir=$1
  until [[ -e $dir/go.mod ]]; do dir=$(dirname "$dir"); done
  echo "$dir"
}

dirs=() modules=()
while read -r dir; do
  compgen -G "$dir/*.go" >/dev/null || continue # The package is gone.
  module=$(module "$dir")
  case $module in
    .) dirs+=("./$dir") ;;
    test/cluster/build/*) ;;
    *) modules+=("$module") ;;
  esac
done < <(changed | xargs -rn1 dirname | sort -u)

if ((${#dirs[@]})); then
  go vet -tags e2e,vmguest,grpcnotrace "${dirs[@]}"
  # Tests with the tags e2e and vmguest are vetted alone: `make e2e` runs them. Where there are no others, go test fails.
  mapfile -t tested < <(go list -e -f '{{if or .GoFiles .CgoFiles .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "${dirs[@]}")
  if ((${#tested[@]})); then
    go test "${tested[@]}"
  fi
  "${lint[@]}" "${dirs[@]}"
else
  echo "no Go file of heddle's own module differs from $base"
fi
for module in $(printf '%s\n' "${modules[@]}" | uniq); do
  (cd "$module" && go vet ./... && go test ./...)
  if [[ $module == cmd/* ]]; then
    (cd "$module" && "${lint[@]}" ./...)
  fi
done
