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

// What is unpacked runs under both names, and the checksum is the archive's.
func TestCLI(t *testing.T) {
	platform, dir := runtime.GOOS+"/"+runtime.GOARCH, t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "./pack.sh", "cli", dir, "v9.9.9", platform).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	file := "heddle_v9.9.9_" + strings.ReplaceAll(platform, "/", "_") + ".tar.gz"
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, file), "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"heddle", "kubectl-heddle"} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, name), "version")
		cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG=") // Without a cluster.
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "v9.9.9") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	content, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	want := hex.EncodeToString(sum[:]) + "  " + file + "\n"
	if text, err := os.ReadFile(filepath.Join(dir, "checksums.txt")); err != nil || string(text) != want {
		t.Errorf("checksums.txt is %s, %v, want %s", text, err, want)
	}
}
