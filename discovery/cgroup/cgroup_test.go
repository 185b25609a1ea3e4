package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	uid   = "2c48913c-b29f-11e7-9350-020968147796"
	under = "2c48913c_b29f_11e7_9350_020968147796"
	other = "9e5f1a52-0a36-4f2e-a8c4-1d3f2b7c6e55"
	hash  = "5a3b1c2d4e5f60718293a4b5c6d7e8f9"
	id    = "9dca18a3f4a1ad50d1e4a7b2b1d5d4cb1b0d1c1e5b2a6a0f9e8d7c6b5a493827"
)

type sample struct {
	name, text string
	want       Container
	err        string
}

func samples() []sample {
	both := Container{PodUID: uid, ID: id}
	return []sample{
		{"v2, systemd, containerd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", both, ""},
		{"v2, systemd, containerd, guaranteed", "0::/kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", both, ""},
		{"v2, systemd, CRI-O, whose payload is a level below", "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/crio-" + id + ".scope/container\n", both, ""},
		{"v2, systemd, Docker", "0::/kubepods.slice/kubepods-pod" + under + ".slice/docker-" + id + ".scope\n", both, ""},
		{"v2, seen from another pod's cgroup namespace", "0::/../../kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", both, ""},
		{"v2, cgroupfs", "0::/kubepods/burstable/pod" + uid + "/" + id + "\n", both, ""},
		{"v2, cgroupfs, CRI-O", "0::/kubepods/besteffort/pod" + uid + "/crio-" + id + "\n", both, ""},
		{"v2, cgroupfs, seen from another pod's cgroup namespace", "0::/../../pod" + uid + "/" + id + "\n", both, ""},
		{"v2, a root of the kubelet's own, as kind has", "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", both, ""},
		{"v2, a static pod", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + hash + ".slice/cri-containerd-" + id + ".scope\n", Container{hash, id}, ""},
		{"v2, the cgroup was removed", "0::/kubepods/pod" + uid + "/" + id + " (deleted)\n", both, ""},
		{"v2, a pod's name within a container's cgroup does not count", "0::/kubepods/pod" + uid + "/" + id + "/pod" + other + "/" + strings.Repeat("a", 64) + "\n", both, ""},
		{
			"v1, cgroupfs", "12:memory:/kubepods/burstable/pod" + uid + "/" + id + "\n11:cpu,cpuacct:/kubepods/burstable/pod" + uid + "/" + id +
				"\n1:name=systemd:/kubepods/burstable/pod" + uid + "/" + id + "\n", both, "",
		},
		{
			"hybrid, systemd", "11:devices:/kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope\n" +
				"10:rdma:/\n1:name=systemd:/kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope\n0::/system.slice/containerd.service\n", both, "",
		},
		{"v1, slices with the driver cgroupfs", "11:pids:/system.slice/containerd.service/kubepods-besteffort-pod" + under + ".slice:cri-containerd:" + id + "\n", both, ""},
		{"the pod's own cgroup", "0::/kubepods/pod" + uid + "\n", Container{PodUID: uid}, ""},
		{"a container of another spelling", "0::/kubepods/pod" + uid + "/sandbox\n", Container{PodUID: uid}, ""},
		{"two pods", "2:cpu:/kubepods/pod" + uid + "/" + id + "\n1:memory:/kubepods/pod" + other + "/" + id + "\n", Container{}, "two pods, " + uid + " and " + other},
		{"two containers", "2:cpu:/kubepods/pod" + uid + "/" + id + "\n1:memory:/kubepods/pod" + uid + "/" + strings.Repeat("a", 64) + "\n", Container{}, "two containers, " + id + " and " + strings.Repeat("a", 64)},
		{"a service of the host", "0::/system.slice/nvidia-dcgm.service\n", Container{}, ErrNoPod.Error()},
		{"a container of no kubelet", "0::/system.slice/docker-" + id + ".scope\n", Container{}, ErrNoPod.Error()},
		{"ourselves, in our own namespace", "0::/\n", Container{}, ErrNoPod.Error()},
		{"someone else's slice", "0::/machine.slice/machine-pod" + under + ".slice/x.scope\n", Container{}, ErrNoPod.Error()},
		{"no UID", "0::/kubepods/pod12345/" + id + "\n", Container{}, ErrNoPod.Error()},
		{"nothing", "", Container{}, ErrNoPod.Error()},
		{"no cgroup file", "garbage\n", Container{}, `line "garbage" is not of a cgroup file`},
	}
}

func TestParse(t *testing.T) {
	for _, tt := range samples() {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.text)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || text != tt.err {
				t.Errorf("%v, want %q (-want +got):\n%s", err, tt.err, diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse(text)
		switch {
		case err != nil && c != Container{}:
			t.Errorf("%+v with %v", c, err)
		case err != nil:
		case !regexp.MustCompile("^(?:" + uidPattern + ")$").MatchString(c.PodUID):
			t.Errorf("invalid UID %q", c.PodUID)
		case !strings.Contains(text, c.PodUID) && !strings.Contains(text, strings.ReplaceAll(c.PodUID, "-", "_")) &&
			!strings.Contains(strings.ReplaceAll(text, "_", "-"), c.PodUID):
			t.Errorf("%q is not in the text", c.PodUID)
		case c.ID != "" && (len(c.ID) != 64 || !strings.Contains(text, c.ID)):
			t.Errorf("%q is not an ID of the text", c.ID)
		}
	})
}

func TestProc(t *testing.T) {
	p := Proc{Root: t.TempDir()}
	write := func(pid, text string) {
		dir := filepath.Join(p.Root, pid)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("7", "0::/kubepods/pod"+uid+"/"+id+"\n")
	write("8", strings.Repeat("0::/kubepods/pod"+uid+"/"+id+"\n", 1000))
	if got, err := p.Container(7); err != nil || got != (Container{uid, id}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := p.Container(8); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file without end: %v", err)
	}
	if _, err := p.Container(9); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
	if p.HostPIDs() {
		t.Error("no namespace is the host's")
	}
	ns := filepath.Join(p.Root, "self", "ns")
	if err := os.MkdirAll(ns, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		link string
		host bool
	}{{"pid:[4026531836]", true}, {"pid:[4026532201]", false}} {
		if err := os.Symlink(tt.link, filepath.Join(ns, "pid")); err != nil {
			t.Fatal(err)
		}
		if got := p.HostPIDs(); got != tt.host {
			t.Errorf("%s is the host's: %t", tt.link, got)
		}
		if err := os.Remove(filepath.Join(ns, "pid")); err != nil {
			t.Fatal(err)
		}
	}
}
