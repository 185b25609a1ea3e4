package kfd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// device makes a character device as the driver does: /dev/null's.
func (r *rig) device(name string) {
	r.t.Helper()
	r.Dir("dev/dri")
	if err := unix.Mknod(r.Dev()+"/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		r.t.Skipf("only root makes device nodes: %v", err)
	}
	if err := os.Chmod(r.Dev()+"/"+name, 0o666); err != nil { // Whatever the umask is.
		r.t.Fatal(err)
	}
}

// nodesOf are the paths in a container by device.
func nodesOf(e *gpu.Edits) map[string]string {
	paths := map[string]string{}
	for _, d := range e.Devices {
		var all []string
		for _, n := range d.ContainerEdits.DeviceNodes {
			all = append(all, n.Path)
		}
		paths[d.Name] = strings.Join(all, " ")
	}
	return paths
}

func TestContainerEdits(t *testing.T) {
	r := newRig(t)
	r.cut("DPX", 2)
	for _, name := range []string{"kfd", "dri/renderD128", "dri/card1", "dri/renderD129", "dri/card2"} {
		r.device(name)
	}
	r.Raw("dev/dri/renderD136", "not a device")
	m := r.host.Scan(t.Context())
	edits, err := r.library.Generate(m)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		uuid + "-p0": "/dev/kfd /dev/dri/renderD128 /dev/dri/card1",
		uuid + "-p1": "/dev/kfd /dev/dri/renderD129 /dev/dri/card2",
	}
	if diff := cmp.Diff(want, nodesOf(edits)); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
	missing := map[string]string{"GPU-00000000000000a2": r.Dev() + "/dri/renderD136 is not a character device"}
	if diff := cmp.Diff(missing, edits.Missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if len(edits.Problems) > 0 {
		t.Errorf("problems %q", edits.Problems)
	}
	// The groups that own the nodes come into the container: it need not be root.
	const video = 44
	if err := os.Chown(r.Dev()+"/dri/renderD128", 0, video); err != nil {
		t.Fatal(err)
	}
	if edits, err = r.library.Generate(m); err != nil {
		t.Fatal(err)
	}
	groups := map[string][]uint32{}
	for _, d := range edits.Devices {
		groups[d.Name] = d.ContainerEdits.AdditionalGIDs
	}
	if diff := cmp.Diff(map[string][]uint32{uuid + "-p0": {video}, uuid + "-p1": nil}, groups); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	// A render node that root alone may open is named, and its GPU handed out all the same.
	if err := os.Chmod(r.Dev()+"/dri/renderD129", 0o600); err != nil {
		t.Fatal(err)
	}
	edits, err = r.library.Generate(m)
	if err != nil || len(edits.Devices) != 2 || len(edits.Problems) != 1 ||
		!strings.Contains(edits.Problems[0], "/dri/renderD129 has mode 0600 and group 0: only containers that run as root can open it") {
		t.Errorf("devices %v, problems %q, error %v", nodesOf(edits), edits.Problems, err)
	}
	before := r.library.Fingerprint()
	r.Remove("dev/kfd")
	if edits, err = r.library.Generate(m); err != nil || len(edits.Devices) > 0 || !strings.Contains(fmt.Sprint(edits.Missing), "/kfd: no such") {
		t.Errorf("without /dev/kfd: %+v, %v", edits, err)
	}
	if r.library.Fingerprint() == before {
		t.Error("the fingerprint does not follow /dev/kfd")
	}
}

// The visible devices of AMD's own runtime are unique_ids, and none where CDI
// brings the devices.
func TestEnvironment(t *testing.T) {
	r := newRig(t)
	vendor := r.vendor()
	got := fmt.Sprint(vendor.Environment.Show([]string{uuid, "GPU-00000000000000a2"}, gpu.Features{GDRCopy: true}), vendor.Environment.Hidden())
	if want := "map[AMD_VISIBLE_DEVICES:0x00000000000000a1,0x00000000000000a2] map[AMD_VISIBLE_DEVICES:none]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
