package vm

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// bzImage packs data as a kernel's build does: a header of setup sectors, then
// the payload, which ends in the size that it unpacks to.
func bzImage(packed []byte, size int) []byte {
	const sectors, offset = 2, 16
	header := [(sectors+1)*512 + offset]byte{}
	image := header[:]
	image[0x1f1] = sectors
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(image[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(image[0x248:], offset)
	binary.LittleEndian.PutUint32(image[0x24c:], uint32(len(packed)+4))
	image = append(image, packed...)
	image = binary.LittleEndian.AppendUint32(image, uint32(size))
	return append(image, "what follows the payload"...)
}

func pack(t *testing.T, data []byte, tool string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("%s is not on this machine", tool)
	}
	packed, err := filter(t.Context(), data, tool, args...)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func TestUnpackKernel(t *testing.T) {
	kernel := append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel "), 1000)...)
	for _, tt := range []struct {
		name, tool string
		args       []string
	}{
		{"as Debian 12 packs", "xz", []string{"-c", "--check=crc32"}},
		{"as Debian 13 packs", "zstd", []string{"-cq"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			packed := pack(t, kernel, tt.tool, tt.args...)
			got, err := unpackKernel(t.Context(), bzImage(packed, len(kernel)))
			if err != nil || !bytes.Equal(got, kernel) {
				t.Errorf("%d bytes, want %d: %v", len(got), len(kernel), err)
			}
			if _, err := unpackKernel(t.Context(), bzImage(packed, len(kernel)+1)); err == nil {
				t.Error("a kernel of another size than in its header is taken")
			}
		})
	}
}

func TestPayloadOfBrokenImages(t *testing.T) {
	good := bzImage([]byte("packed kernel"), 7)
	if data, size, err := payload(good); err != nil || string(data) != "packed kernel" || size != 7 {
		t.Fatalf("%q, %d, %v", data, size, err)
	}
	for _, tt := range []struct {
		name  string
		image []byte
	}{
		{"empty", nil},
		{"cut in the header", good[:0x240]},
		{"cut in the payload", good[:len(good)-len("what follows the payload")-1]},
		{"no magic", bytes.Replace(good, []byte("HdrS"), []byte("....."), 1)},
		{"an old protocol", bytes.Replace(good, []byte{0x0f, 0x02}, []byte{0x07, 0x02}, 1)},
	} {
		if _, _, err := payload(tt.image); err == nil {
			t.Errorf("%s: no error", tt.name)
		}
	}
}

func FuzzPayload(f *testing.F) {
	f.Add(bzImage([]byte("packed kernel"), 7))
	f.Add([]byte("HdrS"))
	f.Fuzz(func(_ *testing.T, image []byte) { _, _, _ = payload(image) })
}

func TestModuleNames(t *testing.T) {
	for file, want := range map[string]string{
		"./lib/modules/6.1.0-56-amd64/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko":     "rdma_rxe",
		"./usr/lib/modules/6.12.1-amd64/kernel/drivers/net/net_failover.ko.xz":          "net_failover",
		"./lib/modules/6.1.0-56-amd64/kernel/crypto/crc32-generic.ko.zst":               "crc32_generic",
		"./lib/modules/6.1.0-56-amd64/kernel/crypto/crc32_generic.ko.sig":               "",
		"./lib/modules/6.1.0-56-amd64/modules.order":                                    "",
		"./usr/share/doc/rdma_rxe.ko":                                                   "",
		"./lib/modules/6.1.0-56-amd64/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.koala.x": "",
	} {
		if got := moduleName(file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
}

func TestOrderPutsNeedsFirst(t *testing.T) {
	deps := map[string][]string{
		"virtio": nil, "virtio_ring": {"virtio"}, "virtio_pci": {"virtio", "virtio_ring"},
		"rdma_rxe": {"ib_core", "udp_tunnel"}, "ib_core": nil, "ib_umad": {"ib_core"},
	}
	for _, tt := range []struct {
		name            string
		wanted          []string
		sorted, missing []string
	}{
		{"a chain", []string{"virtio_pci"}, []string{"virtio", "virtio_ring", "virtio_pci"}, nil},
		{"each once", []string{"ib_umad", "ib_umad", "ib_core"}, []string{"ib_core", "ib_umad"}, nil},
		{"one unknown", []string{"rdma_rxe", "dummy"}, []string{"ib_core", "rdma_rxe"}, []string{"dummy", "udp_tunnel"}},
		{"nothing", nil, nil, nil},
	} {
		sorted, missing := order(tt.wanted, deps)
		if diff := cmp.Diff([][]string{tt.sorted, tt.missing}, [][]string{sorted, missing}); diff != "" {
			t.Errorf("%s: sorted, missing (-want +got):\n%s", tt.name, diff)
		}
	}
	circle := map[string][]string{"a": {"b"}, "b": {"a"}}
	if sorted, _ := order([]string{"a"}, circle); len(sorted) != 2 {
		t.Errorf("a circle: %v", sorted)
	}
}

// module is the smallest ELF with a section .modinfo.
func module(modinfo string) []byte {
	const headerSize, sectionSize = 64, 64
	names := "\x00.modinfo\x00.shstrtab\x00"
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 1)  // ET_REL
	b = le.AppendUint16(b, 62) // EM_X86_64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint64(b, uint64(headerSize+len(modinfo)+len(names)))
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{headerSize, 0, 0, sectionSize, 3, 2} {
		b = le.AppendUint16(b, v)
	}
	b = append(b, modinfo+names...)
	section := func(name, kind uint32, offset, size int) {
		b = le.AppendUint32(b, name)
		b = le.AppendUint32(b, kind)
		// The fifth value is two words of four bytes, sh_link and sh_info.
		for _, v := range []uint64{0, 0, uint64(offset), uint64(size), 0, 1, 0} {
			b = le.AppendUint64(b, v)
		}
	}
	section(0, 0, 0, 0)
	section(1, 1, headerSize, len(modinfo))
	section(10, 3, headerSize+len(modinfo), len(names))
	return b
}

func TestNeedsOfAModule(t *testing.T) {
	for _, tt := range []struct {
		name    string
		data    []byte
		want    []string
		wantErr bool
	}{
		{"two", module("license=GPL\x00depends=ib_core,udp-tunnel\x00name=rdma_rxe\x00"), []string{"ib_core", "udp_tunnel"}, false},
		{"none", module("license=GPL\x00depends=\x00"), nil, false},
		{"no vermagic", module("license=GPL\x00"), nil, false},
		{"no ELF", []byte("module"), nil, true},
	} {
		got, err := needs(tt.data)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != tt.wantErr {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReadTarKeepsWhatIsWanted(t *testing.T) {
	b := bytes.NewReader(tarOf(t, map[string]string{
		"./boot/vmlinuz-6.1.0-56-amd64":                        "image",
		"./lib/modules/6/kernel/drivers/virtio/virtio.ko":      "\x7fELF virtio",
		"./lib/modules/6/kernel/drivers/gpu/drm/nouveau.ko.xz": "not unpacked",
	}))
	got := content{modules: map[string][]byte{}, all: map[string]bool{}}
	if err := readTar(t.Context(), b, []string{"virtio"}, &got); err != nil {
		t.Fatal(err)
	}
	want := content{
		image: []byte("image"), modules: map[string][]byte{"virtio": []byte("\x7fELF virtio")},
		all: map[string]bool{"": true, "virtio": true, "nouveau": true},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(content{})); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
}

func TestParseDepends(t *testing.T) {
	for _, tt := range []struct{ name, stanza, pkg, version string }{
		{
			"Debian", "Package: linux-image-amd64\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)\n",
			"linux-image-6.1.0-56-amd64", "6.1.192-2",
		},
		{"without a version", "Depends: linux-base, linux-image-6.8.0-1\n", "linux-image-6.8.0-1", ""},
		{"no kernel", "Depends: libc6\n", "", ""},
	} {
		pkg, version, err := parseDepends(tt.stanza)
		if pkg != tt.pkg || version != tt.version || (err == nil) != (tt.pkg != "") {
			t.Errorf("%s: %q, %q, %v", tt.name, pkg, version, err)
		}
	}
}

func TestArchiveIsWhatCpioReads(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{"t": "binary", "a.ko": "module a", "b.ko": "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "initramfs")
	modules := []string{filepath.Join(dir, "b.ko"), filepath.Join(dir, "a.ko")}
	if err := writeInitramfs(file, filepath.Join(dir, "t"), modules); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(data)%4 != 0 || !bytes.HasPrefix(data, []byte("070701")) {
		t.Errorf("%d bytes that begin with %.6q", len(data), data)
	}
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip("cpio is not on this machine")
	}
	cmd := exec.CommandContext(t.Context(), "cpio", "-i", "--quiet", "--no-absolute-filenames")
	cmd.Dir, cmd.Stdin = t.TempDir(), bytes.NewReader(data)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, out)
	}
	for name, want := range map[string]string{"init": "binary", "modules/00_b.ko": "b", "modules/01_a.ko": "module a"} {
		got, err := os.ReadFile(filepath.Join(cmd.Dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s is %q, want %q: %v", name, got, want, err)
		}
	}
	info, err := os.Stat(filepath.Join(cmd.Dir, "init"))
	if err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("init cannot be run: %v, %v", info, err)
	}
}
