package mxcd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/mxcd"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// box is a machine of two C500 that MetaXLink joins, and one of a number that heddle
// does not know.
type box struct {
	*sysfstest.Tree
	t *testing.T
}

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{sysfstest.New(t), t}
	for i, device := range []string{"0x4001", "0x4001", "0x4fff"} {
		dir := b.PCI(sysfstest.Function{
			Path: fmt.Sprintf("pci0000:00/0000:00:01.%d/0000:%02x:00.0", i, 8+i), Class: "0x038000",
			Vendor: "0x9999", Device: device, Driver: "metax",
		})
		b.Dir(fmt.Sprintf("%s/drm/card%d", dir, i))
		b.Dir(fmt.Sprintf("%s/drm/renderD%d", dir, 128+i))
	}
	b.Dir("sys/class/mxcd/mxcd")
	b.Write("sys/module/metax/version", "3.4.4")
	return b
}

const (
	list = `echo 'mx-smi  version: 2.2.9'
for i in 0 1 2; do echo "GPU#$i    MXC500      0000:0$(printf %x $((8 + i))):00.0   Available (UUID: GPU-$i)"; done`
	table = `echo '| MACA Version: 3.3.0.15 |'
for i in 8 9; do echo "| 0 | 0000:0$i:00.0 |"; echo '| 826/65536 MiB |'; done
echo '| 2 | 0000:0a:00.0 |'; echo '| 826/32768 MiB |'`
	matrix = `echo '     GPU0 GPU1 GPU2'
echo 'GPU0 X MX NODE'
echo 'GPU1 MX X NODE'
echo 'GPU2 NODE NODE X'`
)

// tool writes mx-smi: what it does when asked for the list, the table, the matrix.
func (b *box) tool(list, table, matrix string) {
	b.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in\n-L)\n%s\n;;\n'')\n%s\n;;\n'topo -m')\n%s\n;;\nesac\n", list, table, matrix)
	path := filepath.Join(b.Root, "opt/mxdriver/bin/mx-smi")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(script), 0o700); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) library() *mxcd.Library {
	return mxcd.New(gpu.Options{SysfsRoot: b.Sys(), DevRoot: b.Dev(), DriverRoot: b.Root})
}

// read is a scan of the GPUs alone.
func (b *box) read(r *gpu.Reader) *machine.Machine {
	b.t.Helper()
	m := &machine.Machine{}
	for i := range 3 {
		m.PCI = append(m.PCI, machine.PCIFunction{
			Address: fmt.Sprintf("0000:%02x:00.0", 8+i), Class: "0x038000", Vendor: "0x9999", Device: "0x4001", Driver: "metax",
		})
	}
	r.Read(b.t.Context(), m)
	return m
}

func (b *box) reader() *gpu.Reader {
	return gpu.NewReader(gpu.Source{Vendor: mxcd.Vendor(), Library: b.library()}, 0)
}

func link(peer string) []machine.NVLink {
	return []machine.NVLink{{Kind: "MX", Peer: peer, Links: 1}}
}

// whole is what the box is read as.
func whole() []machine.GPU {
	var all []machine.GPU
	for i, links := range [][]machine.NVLink{link("0000:09:00.0"), link("0000:08:00.0"), nil} {
		all = append(all, machine.GPU{
			Vendor: "metax-tech.com", UUID: fmt.Sprintf("GPU-0000-%02x-00-0", 8+i), Index: i, Minor: new(128 + i),
			PCI: fmt.Sprintf("0000:%02x:00.0", 8+i), Product: "MXC500", MemoryMiB: 65536, NVLinks: links,
			Health: machine.Health{State: machine.Healthy},
			Attributes: map[string]string{
				"installed": "true", "family": "MXC", "driver.major": "3", "driver.minor": "4", "driver.patch": "4",
				"uuid": fmt.Sprintf("GPU-%d", i), "maca": "3.3.0.15",
			},
		})
	}
	all[2].MemoryMiB = 32768
	return all
}

func TestRead(t *testing.T) {
	b := newBox(t)
	b.tool(list, table, matrix)
	got := b.read(b.reader())
	if diff := cmp.Diff(whole(), got.GPUs); diff != "" || len(got.Skipped) > 0 {
		t.Errorf("skipped %v, (-want +got):\n%s", got.Skipped, diff)
	}
	if got.Driver.Version != "3.4.4" || got.Probes[0].State != machine.ProbeOK {
		t.Errorf("driver %+v, probes %+v", got.Driver, got.Probes)
	}
}

// An installation is often a link to that of a version, as the node sees it.
func TestInstallationBehindALink(t *testing.T) {
	b := newBox(t)
	b.tool(list, table, matrix)
	dir := filepath.Join(b.Root, "opt/mxdriver")
	if err := errors.Join(os.Rename(dir, dir+"-3.4.4"), os.Symlink("/opt/mxdriver-3.4.4", dir)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole(), b.read(b.reader()).GPUs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Without the tool the GPUs are there, with the same identities: what only it has is
// named as missing.
func TestWithoutTheTool(t *testing.T) {
	b := newBox(t)
	got := b.read(b.reader())
	want := whole()
	for i := range want {
		want[i].NVLinks = nil
		delete(want[i].Attributes, "uuid")
		delete(want[i].Attributes, "maca")
	}
	want[2].Product, want[2].MemoryMiB = "MetaX GPU 0x4fff", 0
	delete(want[2].Attributes, "family")
	if diff := cmp.Diff(want, got.GPUs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	skipped(t, got, 3, "links: mx-smi is not installed below "+b.Root)
	skipped(t, got, 1, "memory: mx-smi is not installed")
}

func skipped(t *testing.T, m *machine.Machine, n int, text string) {
	t.Helper()
	found := 0
	for _, s := range m.Skipped {
		if strings.Contains(s.Reason, text) {
			found++
		}
		if len(s.Reason) > 800 {
			t.Errorf("a reason of %d bytes", len(s.Reason))
		}
	}
	if found != n {
		t.Errorf("%d GPUs name %q, want %d: %v", found, text, n, m.Skipped)
	}
}

// A tool that fails leaves the identities, the GPUs and all that it answered before.
func TestTheToolFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, list, reason string }{
		{"another language", "echo '没有设备'", "mx-smi -L: no GPU in"},
		{"it fails", "echo oops; exit 3", "mx-smi -L: it failed: exit status 3"},
		{"it prints for ever", "yes", "mx-smi -L: it printed more than 262144 bytes"},
		{"a state in another language", strings.ReplaceAll(list, "Available", "可用"), `mx-smi -L: state "可用" is not known`},
		{"cut off", "printf 'GPU#0    MXC5'", "it has no index, name, address and state"},
		{"it hangs", "exec sleep 600", "mx-smi -L: it did not answer in 3s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.tool(list, table, matrix)
			r := b.reader()
			b.read(r)
			b.tool(tt.list, table, matrix)
			got := b.read(r)
			if diff := cmp.Diff(whole(), got.GPUs); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			skipped(t, got, 3, tt.reason)
			if got.Probes[0].State != machine.ProbeOK {
				t.Errorf("probe %+v", got.Probes[0])
			}
		})
	}
}

// A tool that failed is left alone for some scans, and its failure stays named.
func TestAToolThatFailedIsLeftAlone(t *testing.T) {
	b := newBox(t)
	b.tool("echo asked >> $0.log; exit 1", "exit 1", "exit 1")
	r := b.reader()
	for range 11 {
		skipped(t, b.read(r), 3, "mx-smi -L: it failed")
	}
	log, err := os.ReadFile(filepath.Join(b.Root, "opt/mxdriver/bin/mx-smi.log"))
	if err != nil || strings.Count(string(log), "asked") != 2 {
		t.Errorf("asked %q, %v, want twice in eleven scans", log, err)
	}
	b.tool(list, table, matrix)
	for range 8 {
		b.read(r)
	}
	if diff := cmp.Diff(whole(), b.read(r).GPUs[:3]); diff == "" {
		t.Error("the tool was asked again before its pause was over")
	}
	if diff := cmp.Diff(whole(), b.read(r).GPUs); diff != "" {
		t.Errorf("after the pause (-want +got):\n%s", diff)
	}
}

func TestUnhealthy(t *testing.T) {
	b := newBox(t)
	b.tool(strings.Replace(list, "0 1 2", "0", 1)+`; echo 'GPU#1 MXC500 0000:09:00.0 Not Available(MetaX Sysfs File Unaccessible)'`, table, matrix)
	b.Remove("sys/bus/pci/devices/0000:08:00.0/driver")
	var got []machine.Health
	for _, g := range b.read(b.reader()).GPUs {
		got = append(got, g.Health)
	}
	want := []machine.Health{
		{State: machine.Unhealthy, Reason: "no driver is bound to it"},
		{State: machine.Unhealthy, Reason: "mx-smi -L: Not Available(MetaX Sysfs File Unaccessible)"},
		{State: machine.Unhealthy, Reason: "mx-smi -L does not list it"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A GPU without a render node costs no other its devices.
func TestGenerateGoesOn(t *testing.T) {
	b := newBox(t)
	m := b.read(b.reader())
	m.GPUs[0].Minor = nil
	edits, err := b.library().Generate(m)
	// The box has no device nodes: each GPU that was reached is missing.
	if err != nil || len(edits.Missing) != 3 || !strings.Contains(edits.Missing[m.GPUs[0].UUID], "has no render node") {
		t.Errorf("%+v, %v", edits, err)
	}
}

func TestNoDriver(t *testing.T) {
	b := newBox(t)
	b.Remove("sys/class/mxcd")
	b.Remove("sys/module/metax")
	got := b.read(b.reader())
	if len(got.GPUs) != 0 || got.Probes[0].State != machine.ProbeAbsent ||
		!strings.Contains(got.Probes[0].Reason, "the metax driver is not loaded") {
		t.Errorf("%+v", got)
	}
}
