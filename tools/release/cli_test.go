package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// What is unpacked runs under both names, and checksums and manifest are those
// of the archive.
func TestCLI(t *testing.T) {
	platform, dir := runtime.GOOS+"/"+runtime.GOARCH, t.TempDir()
	if err := cli(t.Context(), "../..", dir, "v9.9.9", []string{platform}); err != nil {
		t.Fatal(err)
	}
	file := "heddle_v9.9.9_" + strings.ReplaceAll(platform, "/", "_") + ".tar.gz"
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, file), "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"heddle", "kubectl-heddle"} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, name), "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "v9.9.9") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	content, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	for name, want := range map[string]string{
		"checksums.txt": hex.EncodeToString(sum[:]) + "  " + file + "\n",
		"heddle.yaml":   "/v9.9.9/" + file + "\n    sha256: " + hex.EncodeToString(sum[:]) + "\n",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q: %v: %s", name, want, err, text)
		}
	}
}
