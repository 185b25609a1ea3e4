#!/usr/bin/env bash
# Vets, tests and lints the Go packages that differ from BASE (default: HEAD),
# for `make check`. A scheduler's module is looked at when its files changed.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${BASE:-HEAD}
lint=(go tool -modfile="$PWD/tools/lint/go.mod" golangci-lint run --new-from-rev="$base")

changed() {
  git diff --name-only --diff-filter=d "$base" -- '*.go'
  git ls-files --others --exclude-standard -- '*.go'
}
folders() { # the folders of changed files, those of nested modules left out
  changed | grep -vE '^(cmd/heddle-scheduler|cmd/heddle-vc-scheduler|tools|test/cluster/build)/' | xargs -rn1 dirname | sort -u | sed 's|^|./|'
}

mapfile -t dirs < <(folders)
if ((${#dirs[@]})); then
  go vet -tags e2e,vmguest,grpcnotrace "${dirs[@]}"
  go test "${dirs[@]}"
  "${lint[@]}" "${dirs[@]}"
else
  echo "no Go file differs from $base"
fi
for module in cmd/heddle-scheduler cmd/heddle-vc-scheduler; do
  if changed | grep -q "^$module/"; then
    (cd "$module" && go vet ./... && go test ./... && "${lint[@]}" ./...)
  fi
done
go run -C tools/house . -words
