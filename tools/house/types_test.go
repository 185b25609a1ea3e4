package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestCountTypes has a root module, and the schedulers' as modules of their own.
func TestCountTypes(t *testing.T) {
	root := t.TempDir()
	const path = "github.com/heddle-dev/heddle"
	for name, content := range map[string]string{
		"go.mod":                         "module " + path + "\n\ngo 1.25\n",
		"a/a.go":                         "package a\n\ntype I interface{ M() }\n\ntype T struct{}\n\nfunc (T) M() {}\n",
		"test/b/b.go":                    "package b\n\ntype F struct{ f func() }\n",
		"cmd/heddle-scheduler/go.mod":    "module " + path + "/cmd/heddle-scheduler\n\ngo 1.25\n",
		"cmd/heddle-scheduler/main.go":   "package main\n\ntype S struct{ f func() }\n\nfunc (S) A() {}\n\nfunc (S) B() {}\n\nfunc main() {}\n",
		"cmd/heddle-vc-scheduler/go.mod": "module " + path + "/cmd/heddle-vc-scheduler\n\ngo 1.25\n",
		"cmd/heddle-vc-scheduler/p/p.go": "package p\n\ntype V struct{ f func() }\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := countTypes(root)
	if err != nil {
		t.Fatal(err)
	}
	fields := []string{"cmd/heddle-scheduler/main.go:3 cmd/heddle-scheduler.S.f", "cmd/heddle-vc-scheduler/p/p.go:3 cmd/heddle-vc-scheduler/p.V.f"}
	if !slices.Equal(c.fields, fields) || !slices.Equal(c.single, []string{"a.I"}) || c.interfaces != 1 {
		t.Errorf("fields %q, interfaces with one implementation %q of %d", c.fields, c.single, c.interfaces)
	}
	if len(c.methods) != 2 || c.methods[0] != (typeMethods{"cmd/heddle-scheduler.S", 2, 1}) {
		t.Errorf("methods %v", c.methods)
	}
}
