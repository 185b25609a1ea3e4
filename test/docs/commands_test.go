package docs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	text := "# Page\n\n## Before\n\n```sh\nnot this\n```\n\n## Do it\n\nText.\n\n1. First:\n\n   ```sh\n   one --flag\n\n   two    # On the node.\n" +
		"   ```\n2. A file:\n\n   ```yaml\n   a: b\n   ```\n\n```sh\nthree\n```\n\n## Do it later\n\n```sh\nnor this\n```\n"
	if err := os.Mkdir(filepath.Join(dir, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "docs", "page.md"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"one --flag", "two    # On the node.", "three"}
	if diff := cmp.Diff(want, Commands(t, dir, "docs/page.md", "Do it")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
