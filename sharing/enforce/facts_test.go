package enforce

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

// object is the head of an ELF file.
func object(kind elf.Type, m elf.Machine) string {
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(kind), Machine: uint16(m), Version: 1, Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG+string([]byte{byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1}))
	_ = binary.Write(&b, binary.LittleEndian, &h)
	return b.String()
}

func ownMachine() (own, other elf.Machine) {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64, elf.EM_X86_64
	}
	return elf.EM_X86_64, elf.EM_AARCH64
}

func TestRead(t *testing.T) {
	own, _ := ownMachine()
	root, sys, proc := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, filepath.Join(root, "opt/libvgpu.so"), object(elf.ET_DYN, own))
	write(t, filepath.Join(root, "usr/bin/nvidia-cdi-hook"), strings.Repeat("x", 1<<17)+memoryHook+"create-symlinks")
	write(t, filepath.Join(root, "run/nvidia/driver/usr/bin/nvidia-cuda-mps-control"), "")
	if err := os.Chmod(filepath.Join(root, "run/nvidia/driver/usr/bin/nvidia-cuda-mps-control"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(sys, "fs/cgroup/cgroup.controllers"), "cpu memory dmem\n")
	if err := os.MkdirAll(filepath.Join(proc, "self/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := &machine.Machine{Driver: machine.Driver{Version: "615.20.01"}, GPUs: []machine.GPU{
		{UUID: "GPU-1", ComputeCapability: "9.0"},
		{UUID: "GPU-2", ComputeCapability: "8.0", MIG: machine.MIG{Enabled: true}},
		{UUID: "GPU-3", ComputeCapability: "6.1"},
		{UUID: "GPU-4", ComputeCapability: ""},
	}}
	h := Host{
		Root: root, MPS: true, MPSRoot: filepath.Join(root, "run/nvidia/driver"), Library: "/opt/libvgpu.so", Hook: "/usr/bin/nvidia-cdi-hook",
		SysRoot: sys,
	}
	want := Facts{
		Driver: "615.20.01", MIG: []string{"GPU-2"}, PreVolta: []string{"GPU-3"},
		MPSControl: "/usr/bin/nvidia-cuda-mps-control", MPS: true, CgroupV2: true, Hook: "/usr/bin/nvidia-cdi-hook",
	}
	if diff := cmp.Diff(want, h.Read(m, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want.MIG, want.PreVolta = nil, nil
	if diff := cmp.Diff(want, h.Read(m, func(g *machine.GPU) bool { return g.UUID == "GPU-1" })); diff != "" {
		t.Errorf("one GPU is shared (-want +got):\n%s", diff)
	}
	empty := Host{Root: t.TempDir(), Library: "/opt/libvgpu.so", Hook: "/usr/bin/nvidia-cdi-hook", SysRoot: t.TempDir(), UsageError: "no hostPID"}
	want = Facts{
		LibraryError: "library /opt/libvgpu.so: no such file or directory",
		Hook:         "/usr/bin/nvidia-cdi-hook",
		HookError:    "hook /usr/bin/nvidia-cdi-hook: no such file or directory",
		UsageError:   "no hostPID",
	}
	if diff := cmp.Diff(want, empty.Read(&machine.Machine{}, nil)); diff != "" {
		t.Errorf("nothing is there (-want +got):\n%s", diff)
	}
}

// The program is found wherever drivers are installed, under any root.
func TestControlIsFound(t *testing.T) {
	for _, dir := range []string{
		"/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin", "/bin", "/opt/bin", "/home/kubernetes/bin/nvidia/bin",
	} {
		root := t.TempDir()
		path := filepath.Join(dir, "nvidia-cuda-mps-control")
		write(t, filepath.Join(root, path), "")
		if got := findControl(root); got != "" {
			t.Errorf("%s is not executable and was found as %q", path, got)
		}
		if err := os.Chmod(filepath.Join(root, path), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := findControl(root); got != path {
			t.Errorf("%s: found %q", path, got)
		}
	}
}

// Debian's packages install it by way of /etc/alternatives, with absolute links.
func TestControlBehindLinks(t *testing.T) {
	root := t.TempDir()
	link(t, root, "/usr/bin/nvidia-cuda-mps-control", "/etc/alternatives/nvidia-cuda-mps-control")
	link(t, root, "/etc/alternatives/nvidia-cuda-mps-control", "/usr/lib/nvidia/current/nvidia-cuda-mps-control")
	if got := findControl(root); got != "" {
		t.Errorf("without the driver: %q", got)
	}
	file := filepath.Join(root, "usr/lib/nvidia/current/nvidia-cuda-mps-control")
	write(t, file, "")
	if err := os.Chmod(file, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := findControl(root); got != "/usr/bin/nvidia-cuda-mps-control" {
		t.Errorf("found %q", got)
	}
}

// link makes a link below a root to a path as who has that root sees it.
func link(t *testing.T, root, path, to string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
		t.Fatal(err)
	}
}

func TestLibraryFault(t *testing.T) {
	own, other := ownMachine()
	root := t.TempDir()
	write(t, filepath.Join(root, "good.so"), object(elf.ET_DYN, own))
	write(t, filepath.Join(root, "program"), object(elf.ET_EXEC, own))
	write(t, filepath.Join(root, "other.so"), object(elf.ET_DYN, other))
	write(t, filepath.Join(root, "text.so"), "hello, this is no library at all")
	link(t, root, "/linked.so", "/good.so")
	for library, want := range map[string]string{
		"/good.so": "", "/linked.so": "", "good.so": "library good.so is not an absolute path",
		"":          "sgpu.enforce.preloadLibrary names no library",
		"/program":  "library /program: ET_EXEC is not a shared object",
		"/other.so": "library /other.so is for " + other.String() + ", the node is " + own.String(),
		"/text.so":  "library /text.so: bad magic number '[104 101 108 108]' in record at byte 0x0",
	} {
		if diff := cmp.Diff(want, message(checkLibrary(root, library))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", library, diff)
		}
	}
}

func TestContains(t *testing.T) {
	for _, text := range []string{"", "a", "xxword", "word", "wordxx", "xwoword", strings.Repeat("w", 1<<17) + "ord", strings.Repeat("x", 1<<17)} {
		want := strings.Contains(text, "word")
		if got, err := contains(strings.NewReader(text), "word"); got != want || err != nil {
			t.Errorf("%d bytes: %t, %v", len(text), got, err)
		}
		if got, err := contains(iotest.OneByteReader(strings.NewReader(text)), "word"); got != want || err != nil {
			t.Errorf("byte by byte, %d bytes: %t, %v", len(text), got, err)
		}
	}
}

// Facts are of the GPUs that are shared: those of another maker have no MPS.
func TestMakerOfSharedGPUs(t *testing.T) {
	m := &machine.Machine{GPUs: []machine.GPU{{UUID: "GPU-1"}, {UUID: "GPU-2", Vendor: "amd.com"}}}
	host := Host{Root: t.TempDir()}
	if got := host.Read(m, nil).Maker; got != "amd.com" {
		t.Errorf("all are shared: %q", got)
	}
	if got := host.Read(m, func(g *machine.GPU) bool { return g.UUID == "GPU-1" }).Maker; got != "" {
		t.Errorf("NVIDIA's is shared: %q", got)
	}
}

// TestRegions: shares of AMD's GPUs are limited by the kernel where it counts their memory, and
// by nothing where it does not, with the reason.
func TestRegions(t *testing.T) {
	const two = "drm/0000:03:00.0/stolen 4096\ndrm/0000:03:00.0/vram 68719476736\ndrm/0000:83:00.0/vram 68719476736\nnvidia/x 1\n"
	m := &machine.Machine{Driver: machine.Driver{Version: "6.10.5", Vendor: "amd.com"}, GPUs: []machine.GPU{
		{UUID: "GPU-a", Vendor: "amd.com", PCI: "0000:03:00.0", MemoryMiB: 65536},
		{UUID: "GPU-b", Vendor: "amd.com", PCI: "0000:83:00.0", MemoryMiB: 65536, Index: 1},
	}}
	for name, tt := range map[string]struct {
		capacity, hook string
		want           config.Enforcer
		why            string
	}{
		"both":            {two, "/state/heddle-cdi-hook", config.EnforceDMem, ""},
		"no hook":         {two, "", config.EnforceNone, "not by dmem, because heddle-cdi-hook is not in the state directory"},
		"an older kernel": {"", "/state/heddle-cdi-hook", config.EnforceNone, "not by dmem, because the kernel has no dmem controller"},
		"an older driver": {"drm/0000:03:00.0/vram 1\n", "/state/heddle-cdi-hook", config.EnforceNone, "the driver of GPU 1 counts nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			sys := t.TempDir()
			if tt.capacity != "" {
				file := filepath.Join(sys, capacityFile)
				if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(tt.capacity), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			facts := (&Host{SysRoot: sys, OwnHook: tt.hook}).Read(m, nil)
			choice, err := choose(&config.Enforce{Memory: config.EnforceAuto, Compute: config.EnforceAuto}, &facts)
			if err != nil || choice.Memory != tt.want || choice.Compute != config.EnforceNone || !strings.Contains(choice.WhyMemory, tt.why) {
				t.Fatalf("choice %+v, %v", choice, err)
			}
			d := &dmem{own: tt.hook, sysRoot: sys}
			edits, err := d.edits(t.Context(), &Limit{GPUs: []GPU{
				{Share: allocation.Share{UUID: "GPU-a", MemoryMiB: 4096}, PCI: "0000:03:00.0", Maker: "amd.com"},
				{Share: allocation.Share{UUID: "GPU-b", MemoryMiB: 1024}, PCI: "0000:83:00.0", Maker: "amd.com"},
			}}, nil)
			if (err == nil) != (tt.want == config.EnforceDMem) {
				t.Fatalf("edits %+v, %v", edits, err)
			}
			want := []string{"heddle-cdi-hook", "dmem", "drm/0000:03:00.0/vram=4294967296", "drm/0000:83:00.0/vram=1073741824"}
			if err == nil && (len(edits.Hooks) != 1 || edits.Hooks[0].HookName != "createRuntime" ||
				edits.Hooks[0].Path != tt.hook || !slices.Equal(edits.Hooks[0].Args, want)) {
				t.Errorf("hooks %+v", edits.Hooks)
			}
		})
	}
}
