//go:build e2e && linux

package devices

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// cdiFault breaks the CDI directory, has a pod wait for a reason, mends it and
// has the pod start. Containers that run stay as they are.
func (r *rig) cdiFault(t *testing.T, reason string, breaks, mend func()) {
	t.Helper()
	before := r.lives(t, r.workload(t)...)
	breaks()
	mended := false
	mendOnce := func() {
		if !mended {
			mended = true
			mend()
		}
	}
	t.Cleanup(mendOnce)
	r.create(t, r.pod("waits", box{gpus: 2, hcas: 2}))
	r.waitWaiting(t, "waits", reason, 30*time.Second)
	r.untouched(t, before)
	mendOnce()
	begin := time.Now()
	r.waitReady(t, "waits", 45*time.Second)
	t.Logf("it started %.1f s after the directory was mended", time.Since(begin).Seconds())
	r.has(t, "waits", "app", 2, 2)
	n := r.crash(t, "big")
	r.waitRestart(t, "big", "app", n+1, 45*time.Second)
	r.sameDevices(t, before)
	r.consistent(t)
}

// TestCDIDirectoryReadOnly: the mount point's flag, as some systems have it.
func TestCDIDirectoryReadOnly(t *testing.T) {
	r := failing(t)
	r.cdiFault(t, "read-only file system", func() {
		r.onNode(t, "mount --bind /run/cdi /run/cdi && mount -o remount,bind,ro /run/cdi")
	}, func() { r.onNode(t, "umount /run/cdi") })
}

// TestCDIDirectoryFull: a tmpfs of 64 KiB, which another process fills.
func TestCDIDirectoryFull(t *testing.T) {
	r := failing(t)
	// containerd watches directories, not mount points: it has to look again.
	again := func(line string) {
		r.onNode(t, line)
		if err := r.StopContainerd(r.ctx(t)); err != nil {
			t.Fatal(err)
		}
		if err := r.StartContainerd(r.ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	again("cp -a /run/cdi /run/cdi.before && mount -t tmpfs -o size=64k tmpfs /run/cdi && cp /run/cdi.before/driver* /run/cdi")
	t.Cleanup(func() { again("umount /run/cdi; rm -rf /run/cdi.before") })
	r.cdiFault(t, "no space left on device", func() {
		r.onNode(t, "dd if=/dev/zero of=/run/cdi/filler bs=1k 2>/dev/null || true")
	}, func() { r.onNode(t, "rm /run/cdi/filler") })
}

// TestCDIDirectoryMissing: it is deleted. It is made again with the next
// start, of a new container and of one that was there.
func TestCDIDirectoryMissing(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	for _, what := range []string{"a new pod", "a restart"} {
		if err := os.RemoveAll(r.NodeDir("/run/cdi")); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if what == "a new pod" {
			r.lands(t, "new")
		} else {
			n := r.crash(t, "big")
			r.waitRestart(t, "big", "app", n+1, 60*time.Second)
		}
		t.Logf("%s started %.1f s after the directory was deleted", what, time.Since(begin).Seconds())
	}
	r.sameDevices(t, before)
	r.untouched(t, map[string]life{"small": before["small"]})
	r.consistent(t)
}

// TestCorruptSpec: garbage in one container's spec, in a file of an unknown owner
// and in the driver's. Others start, and a start of its own mends the first.
func TestCorruptSpec(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	big := r.bindings(t)[key("big", "app")]
	at := slices.IndexFunc(big, func(rec record) bool {
		_, err := os.Stat(filepath.Join(r.NodeDir("/run/cdi"), "heddle-gpu-"+rec.Device+".json"))
		return err == nil && rec.Owner.UID == string(r.getPod(t, "big").UID)
	})
	if at < 0 {
		t.Fatalf("no spec of big: %+v", big)
	}
	for _, name := range []string{"heddle-gpu-" + big[at].Device + ".json", "otherPlugin.json"} {
		r.spoil(t, filepath.Join(r.NodeDir("/run/cdi"), name))
	}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(r.NodeDir("/run/cdi"), "otherPlugin.json")) })
	r.lands(t, "new")
	r.remove(t, "new")
	n := r.crash(t, "big")
	r.waitRestart(t, "big", "app", n+1, 45*time.Second)
	r.sameDevices(t, before)
	if err := os.Remove(filepath.Join(r.NodeDir("/run/cdi"), "otherPlugin.json")); err != nil {
		t.Fatal(err)
	}
	r.consistent(t)

	r.spoil(t, filepath.Join(r.NodeDir("/run/cdi"), "driver.heddle.dev-gpu.json"))
	begin := time.Now()
	r.lands(t, "newer")
	t.Logf("a pod started %.1f s after the driver's spec was corrupted", time.Since(begin).Seconds())
	r.consistent(t)
}

// spoil overwrites a file with garbage.
func (*rig) spoil(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(`{"cdiVersion": "0.5`), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestCorruptRecord: the plugin starts over garbage in a record, reports it, and
// the container comes back with what it had.
func TestCorruptRecord(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	var spoilt string
	for _, rec := range r.bindings(t)[key("big", "app")] {
		if rec.Owner.UID == string(r.getPod(t, "big").UID) && rec.Kind == "rdma" {
			spoilt = rec.Device
			r.spoil(t, filepath.Join(r.dir, "state", "records", rec.Device+".json"))
		}
	}
	mark := r.plugin.log.mark()
	r.plugin.restart(t)
	r.waitLog(t, mark, "checkpoint entry "+spoilt+".json, set aside", 5*time.Second)
	r.untouched(t, before)
	r.lands(t, "new")
	n := r.crash(t, "big")
	r.waitRestart(t, "big", "app", n+1, 45*time.Second)
	r.sameDevices(t, before)
	r.consistent(t)
}

// TestCorruptCheckpoint: garbage under the running kubelet, which writes it
// again at the next allocation. Until then PodResources alone shows which container has what.
func TestCorruptCheckpoint(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	path := r.NodeDir("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mark := r.plugin.log.mark()
	r.spoil(t, path)
	n := r.crash(t, "big")
	r.waitRestart(t, "big", "app", n+1, 45*time.Second)
	r.waitLog(t, mark, "component=checkpoint", 5*time.Second)
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	r.sameDevices(t, before)
	r.untouched(t, map[string]life{"small": before["small"]})
	r.lands(t, "new")
	r.consistent(t)
}

// TestPodResourcesAbsentAndSlow: without the kubelet's account it is unknown
// which container has the devices. The pod waits and gets the reason; with an account that
// takes 2 s it starts.
func TestPodResourcesAbsentAndSlow(t *testing.T) {
	r := failing(t)
	before := r.lives(t, r.workload(t)...)
	socket := r.NodeDir("/var/lib/kubelet/pod-resources/kubelet.sock")
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Error(err)
		}
	}
	move(socket, socket+".real")
	t.Cleanup(func() {
		if _, err := os.Lstat(socket + ".real"); err == nil {
			move(socket+".real", socket)
		}
	})
	r.plugin.restart(t) // Connections outlive the socket's name.
	begin := time.Now()
	r.create(t, r.pod("waits", box{gpus: 2, hcas: 2}))
	r.waitWaiting(t, "waits", "PodResources", 30*time.Second)
	t.Logf("reported after %.1f s", time.Since(begin).Seconds())
	r.untouched(t, before)

	stop := slow(t, socket, socket+".real", 2*time.Second)
	begin = time.Now()
	r.waitReady(t, "waits", 45*time.Second)
	t.Logf("it started %.1f s after PodResources came back slow", time.Since(begin).Seconds())
	stop()
	move(socket+".real", socket)
	r.has(t, "waits", "app", 2, 2)
	r.run(t, r.pod("new", box{gpus: 1, hcas: 1}))
	r.untouched(t, before)
	r.consistent(t)
}

// slow passes connections on to another socket, every answer late, until it is
// stopped.
func slow(t *testing.T, path, to string, delay time.Duration) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			real, err := net.Dial("unix", to)
			if err != nil {
				conn.Close()
				return
			}
			t.Cleanup(func() { conn.Close(); real.Close() })
			go func() { _, _ = io.Copy(real, conn) }()
			go func() {
				buffer := make([]byte, 64<<10)
				for {
					n, err := real.Read(buffer)
					if err != nil {
						return
					}
					<-time.After(delay)
					_, _ = conn.Write(buffer[:n])
				}
			}()
		}
	}()
	return func() { listener.Close() }
}

// TestSpecsOfGonePodsAreCollected without another allocation, to which the kubelet's checkpoint
// names them; those of pods that live stay.
func TestSpecsOfGonePodsAreCollected(t *testing.T) {
	r := failing(t)
	r.workload(t)
	for i := range 3 {
		r.create(t, r.pod(fmt.Sprintf("gone-%d", i), box{gpus: 1, hcas: 1}))
	}
	for i := range 3 {
		name := fmt.Sprintf("gone-%d", i)
		r.waitReady(t, name, 60*time.Second)
		r.remove(t, name)
	}
	live := map[string]bool{}
	for _, name := range []string{"big", "small"} {
		uid := string(r.getPod(t, name).UID)
		for _, cdi := range r.checkpointNames(t)[uid]["app"] {
			_, device, _ := strings.Cut(cdi, "=")
			live[device] = true
		}
	}
	took := eventually(t, waitCollected, func() string {
		left := map[string]bool{}
		for _, dir := range []string{r.NodeDir("/run/cdi"), filepath.Join(r.dir, "state", "records"), filepath.Join(r.dir, "state", "devices")} {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if info, err := e.Info(); e.Name() == "names.jsonl" && err == nil && info.Size() == 0 {
					continue // Names without an owner: none.
				}
				device := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(e.Name(), "heddle-gpu-"), "heddle-rdma-"), ".json")
				if !live[device] && !strings.HasPrefix(e.Name(), "driver.") {
					left[filepath.Join(filepath.Base(dir), e.Name())] = true
				}
			}
		}
		if len(left) > 0 {
			// Whose they are, by what is in their records.
			var owners []string
			for name := range left {
				content, _ := os.ReadFile(filepath.Join(r.dir, "state", name))
				if _, owner, ok := strings.Cut(string(content), `"owner":`); ok {
					owners = append(owners, owner[:min(len(owner), 120)])
				}
			}
			return fmt.Sprintf("left: %v, owned by %v", sortedKeys(left), owners)
		}
		return ""
	})
	t.Logf("collected %.0f s after the last pod went", took.Seconds())
	r.consistent(t)
}
