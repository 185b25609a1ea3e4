package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unpack reads every file of a tar.
func unpack(t *testing.T, data []byte) (map[string]tar.Header, map[string][]byte) {
	t.Helper()
	headers, contents := map[string]tar.Header{}, map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := headers[h.Name]; twice {
			t.Errorf("%s is there twice", h.Name)
		}
		headers[h.Name] = *h
		if contents[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, file string, data []byte, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, mode); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestPack(t *testing.T) {
	dir := t.TempDir()
	script := write(t, filepath.Join(dir, "script"), []byte("#!/bin/sh\n"), 0o755)
	out := filepath.Join(dir, "out.tar")
	spec := Spec{
		Name: "localhost/x:1", Files: map[string]string{"/opt/x/run": script}, Data: map[string][]byte{"/etc/x": []byte("data")},
		Links: map[string]string{"/bin/x": "/opt/x/run"}, Entrypoint: []string{"/bin/x"}, Env: []string{"A=b"}, User: "65534",
	}
	if err := Pack(out, spec); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := Name(bytes.NewReader(first)); err != nil || name != spec.Name {
		t.Errorf("the archive's name is %q, %v", name, err)
	}
	if _, err := Name(bytes.NewReader(first[:512])); err == nil {
		t.Error("half an archive has a name")
	}
	_, archive := unpack(t, first)
	var manifest []manifestItem
	if err := json.Unmarshal(archive["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || len(manifest[0].Layers) != 1 || !slices.Equal(manifest[0].RepoTags, []string{"localhost/x:1"}) {
		t.Fatalf("manifest is %+v", manifest)
	}
	layer := archive[manifest[0].Layers[0]]
	var config struct {
		Config struct {
			User       string   `json:"User"`
			WorkingDir string   `json:"WorkingDir"`
			Env        []string `json:"Env"`
			Entrypoint []string `json:"Entrypoint"`
		} `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(archive[manifest[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(layer)
	if want := []string{"sha256:" + hex.EncodeToString(sum[:])}; !slices.Equal(config.RootFS.DiffIDs, want) {
		t.Errorf("diff IDs are %v, the layer's is %v", config.RootFS.DiffIDs, want)
	}
	if config.Config.User != "65534" || config.Config.WorkingDir != "/" || !slices.Contains(config.Config.Env, "A=b") ||
		!slices.Equal(config.Config.Entrypoint, []string{"/bin/x"}) {
		t.Errorf("run configuration is %+v", config.Config)
	}
	headers, contents := unpack(t, layer)
	if h := headers["opt/x/run"]; h.Mode != 0o755 || string(contents["opt/x/run"]) != "#!/bin/sh\n" {
		t.Errorf("script has mode %o and content %q", h.Mode, contents["opt/x/run"])
	}
	if h := headers["bin/x"]; h.Typeflag != tar.TypeSymlink || h.Linkname != "/opt/x/run" {
		t.Errorf("link is %+v", h)
	}
	if h := headers["tmp/"]; h.Mode != 0o1777 {
		t.Errorf("/tmp has mode %o", h.Mode)
	}
	if string(contents["etc/x"]) != "data" {
		t.Errorf("data is %q", contents["etc/x"])
	}

	if err := Pack(out, spec); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(out); err != nil || !bytes.Equal(first, second) {
		t.Errorf("packing twice gives different images (%v)", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files left: %v, %v", left, err)
	}
}

func TestPackFails(t *testing.T) {
	dir := t.TempDir()
	for name, spec := range map[string]Spec{
		"no name":      {},
		"missing file": {Name: "x:1", Files: map[string]string{"/x": filepath.Join(dir, "absent")}},
		"directory":    {Name: "x:1", Files: map[string]string{"/x": dir}},
	} {
		out := filepath.Join(dir, "out.tar")
		if err := Pack(out, spec); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: half an image is there", name)
		}
	}
}

// TestClosureOfSystemProgram takes any dynamically linked program: what it is
// found to need must include its loader and a C library, each a file.
func TestClosureOfSystemProgram(t *testing.T) {
	o, err := readObject("/bin/sh")
	if err != nil || o == nil || o.interp == "" {
		t.Skipf("/bin/sh is not a dynamically linked program here (%v)", err)
	}
	libs, err := hostSearch().closure("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, lib := range libs {
		if info, err := os.Stat(lib.src); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", lib.src, info, err)
		}
		names = append(names, lib.dst)
	}
	if !slices.Contains(names, o.interp) || len(names) != len(o.needed)+1 {
		t.Errorf("found %v for loader %s and %v", names, o.interp, o.needed)
	}
}

// TestSearchOrder puts one real library in several places of a made-up root.
func TestSearchOrder(t *testing.T) {
	libs, err := hostSearch().closure("/bin/sh")
	if err != nil || len(libs) < 2 {
		t.Skipf("no shared library at hand: %v, %v", libs, err)
	}
	real, err := os.ReadFile(libs[0].src)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := readObject(libs[0].src)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "etc/ld.so.conf"), []byte("# comment\ninclude ld.so.conf.d/*.conf\n/opt/last\n"), 0o644)
	write(t, filepath.Join(root, "etc/ld.so.conf.d/a.conf"), []byte("/opt/first # why\n"), 0o644)
	for _, dir := range []string{"opt/first", "opt/last", "usr/lib", "opt/run"} {
		write(t, filepath.Join(root, dir, "libboth.so"), real, 0o644)
	}
	for _, dir := range []string{"opt/first", "opt/last"} {
		write(t, filepath.Join(root, dir, "libconf.so"), real, 0o644)
	}
	write(t, filepath.Join(root, "lib/libtext.so"), []byte("INPUT(libboth.so)\n"), 0o644) // A linker script.
	by := &object{machine: lib.machine, class: lib.class}
	s := newSearch(root)
	for _, tc := range []struct {
		name    string
		runpath []string
		want    string
		path    bool
	}{
		{"libboth.so", nil, "/usr/lib/libboth.so", false},
		{"libboth.so", []string{"/opt/none", "/opt/run"}, "/opt/run/libboth.so", true},
		{"libconf.so", nil, "/opt/first/libconf.so", true},
	} {
		got, _, err := s.find(tc.name, by, tc.runpath)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		want := library{dst: tc.want, src: filepath.Join(root, tc.want), needsPath: tc.path}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(library{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	for _, name := range []string{"libtext.so", "libabsent.so"} {
		if _, _, err := s.find(name, by, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want not found", name, err)
		}
	}
}
