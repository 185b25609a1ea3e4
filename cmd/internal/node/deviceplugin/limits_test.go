package deviceplugin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// The agent reports the MPS daemons of a limiter that has this method.
var _ interface{ Daemons() []enforce.Daemon } = (*limiter)(nil)

// library is the head of a shared object of this processor.
func library(t *testing.T) []byte {
	t.Helper()
	kind := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(kind), Version: 1, Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG+string([]byte{byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1}))
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The enforcers follow the configuration, and, within a minute, what is put in
// place on the node.
func TestLimiterFollowsTheNode(t *testing.T) {
	host, state := t.TempDir(), t.TempDir()
	o := &options{stateDir: state, mpsShmDir: defaultShm}
	o.HostRoot = host
	l := newLimiter(o, slog.New(slog.DiscardHandler))
	limit := &enforce.Limit{
		Pod: "u", Container: "main", Policy: quota.FixedShare,
		GPUs: []enforce.GPU{{Share: allocation.Share{UUID: "GPU-a", VCore: 50, MemoryMiB: 1024}, TotalMiB: 81559}},
	}
	if _, _, err := l.Edits(t.Context(), limit); err == nil {
		t.Error("a container starts before the node has been probed")
	}
	m, c := &machine.Machine{}, config.Default()
	configure := func() (enforce.Enforced, error) {
		err := l.Configure(m, &c)
		choice, _ := l.Choice()
		return choice.Enforced, err
	}
	if got, err := configure(); err != nil || got != (enforce.Enforced{Memory: config.EnforceNone, Compute: config.EnforceNone}) {
		t.Errorf("without anything: %v, %v", got, err)
	}

	c.SGPU.Enforce.PreloadLibrary = "/opt/vgpu/libvgpu.so"
	if got, err := configure(); err != nil || got.Memory != config.EnforceNone {
		t.Errorf("with a library that is not there: %v, %v", got, err)
	}
	if err := os.MkdirAll(filepath.Join(host, "opt/vgpu"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, c.SGPU.Enforce.PreloadLibrary), library(t), 0o600); err != nil {
		t.Fatal(err)
	}
	l.at = l.at.Add(-factsEvery)
	both := enforce.Enforced{Memory: config.EnforcePreload, Compute: config.EnforcePreload}
	if got, err := configure(); err != nil || got != both {
		t.Errorf("with a library: %v, %v", got, err)
	}
	edits, by, err := l.Edits(t.Context(), limit)
	if err != nil || by != both || !strings.HasPrefix(edits.Mounts[0].HostPath, state+"/") {
		t.Errorf("edits %+v, %v", edits, err)
	}

	c.SGPU.Enforce.Compute = config.EnforceMPS
	const want = "sgpu.enforce.compute is mps, which cannot work here: no driver"
	for range 2 {
		if _, err := configure(); err == nil || err.Error() != want {
			t.Errorf("what cannot work: %v", err)
		}
	}
	if _, _, err := l.Edits(t.Context(), limit); err == nil || err.Error() != want {
		t.Errorf("a container under an enforcer that cannot work: %v", err)
	}
}

// With auto the hook of enforcer dmem is the one that the host has now.
func TestLimiterLooksForTheHook(t *testing.T) {
	root := t.TempDir()
	o := &options{stateDir: t.TempDir(), cdiHook: gpu.AutoHook, mpsShmDir: defaultShm}
	o.HostRoot = root
	l := newLimiter(o, slog.New(slog.DiscardHandler))
	const hook = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
	c := config.Default()
	for _, want := range []string{"", hook, ""} {
		var err error
		path := filepath.Join(root, hook)
		if want != "" {
			err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o700))
		} else {
			err = os.RemoveAll(path)
		}
		l.at = l.at.Add(-factsEvery)
		if err = errors.Join(err, l.Configure(&machine.Machine{}, &c)); err != nil {
			t.Fatal(err)
		}
		if l.host.Hook != want {
			t.Errorf("hook %q, want %q", l.host.Hook, want)
		}
	}
}

// The limiter looks for the driver's programs where heddle-mps will run them.
func TestProgramsOfMPS(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr/bin/nvidia-cuda-mps-control"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	m := &machine.Machine{Driver: machine.Driver{Version: "570.86.15"}}
	for _, tt := range []struct {
		name, root string
		mps        bool
		want       string
	}{
		{"in the driver's root", root, true, "compute is limited by mps"},
		{"nowhere", t.TempDir(), true, "the driver's root has no nvidia-cuda-mps-control"},
		{"no heddle-mps", root, false, "heddle-mps is not deployed (gpuDevice.mps)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := &options{stateDir: t.TempDir(), mpsRoot: tt.root, mps: tt.mps, mpsShmDir: defaultShm}
			l := newLimiter(o, slog.New(slog.DiscardHandler))
			c := config.Default()
			if err := l.Configure(m, &c); err != nil {
				t.Fatal(err)
			}
			if choice, _ := l.Choice(); !strings.Contains(choice.WhyCompute, tt.want) {
				t.Errorf("%s", choice.WhyCompute)
			}
		})
	}
}

func TestOpenShm(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev/shm"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := openShm(root, "/dev/shm/heddle-mps"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(root, "dev/shm"))
	if err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("clients of other users cannot share memory there: %v, %v", info.Mode(), err)
	}
	if err := openShm(t.TempDir(), "/dev/shm/heddle-mps"); err == nil {
		t.Error("missing shared memory is not an error")
	}
}

// A start on a full disk writes heddle-cdi-hook later, and its path is used from the start: containers fail until then,
// and none starts without its checks.
func TestHookIsWrittenLater(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shipped, state := filepath.Join(filepath.Dir(self), mountsHook), t.TempDir()
	if err := os.WriteFile(shipped, []byte("hook"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(shipped) })
	target := filepath.Join(state, mountsHook)
	if err := os.Mkdir(target, 0o750); err != nil { // No file can take its place.
		t.Fatal(err)
	}
	l := newLimiter(&options{stateDir: state}, slog.New(slog.DiscardHandler))
	if l.host.OwnHook != target {
		t.Errorf("the hook is %q", l.host.OwnHook)
	}
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { l.install(t.Context()) })
	if text, err := os.ReadFile(target); err != nil || string(text) != "hook" {
		t.Errorf("%q, %v", text, err)
	}
}
