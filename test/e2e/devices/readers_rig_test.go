//go:build e2e && linux

package devices

import (
	"fmt"
	"slices"
	"testing"

	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/test/cluster"
)

// readers are the three daemons that read the machine's driver, each started again whenever it ends.
type readers struct {
	*rig
	n       *nodeWithDriver
	daemons []*process
	// ends count how often each daemon has ended.
	ends []func() int
}

// newReaders starts them, and waits until each has published what it reads.
func newReaders(t *testing.T, r *rig, n *nodeWithDriver) *readers {
	t.Helper()
	d := &readers{rig: r, n: n, daemons: []*process{r.plugin, n.daemon(t, r, labelerDaemon), n.daemon(t, r, workerDaemon)}}
	r.topologyCRD(t)
	for _, p := range d.daemons {
		p.args = append(p.args, "--log-level", "debug")
		d.ends = append(d.ends, p.supervise(t))
	}
	r.waitRegistered(t)
	d.waitPublished(t, driverBefore)
	return d
}

// waitPublished waits until all that the daemons publish is of this driver, with 8 GPUs.
func (d *readers) waitPublished(t *testing.T, version string) {
	t.Helper()
	d.waitAllocatable(t, gpuResource, 8)
	d.waitDriverLabel(t, version)
	report := "nt/" + d.Node()
	d.kubectl(t, "wait", report, "--timeout=3m", "--for=create")
	d.kubectl(t, "wait", report, "--timeout=3m", "--for=jsonpath={.spec.accelerators[0].count}=8")
}

// pluginPod is a pod of a DaemonSet that stands for the device plugin, which is no pod here. It is
// in the node's network as the chart's is, so that `heddle` reaches the plugin by it.
func (d *readers) pluginPod(t *testing.T) {
	t.Helper()
	err := d.Apply(t.Context(), fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: heddle-device-plugin, namespace: %[1]s}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: heddle-device-plugin}}
  template:
    metadata: {labels: {app.kubernetes.io/name: heddle-device-plugin}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers: [{name: main, image: %[2]q}]
`, namespace, cluster.PauseImage))
	if err != nil {
		t.Fatal(err)
	}
	d.kubectl(t, "rollout", "status", "daemonset/heddle-device-plugin", "--timeout=3m")
}

// waitIdle waits until no process has a session with the driver, and none of the daemons a device
// node of it open.
func (d *readers) waitIdle(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		holders, err := d.n.Holders()
		if err != nil || len(holders) > 0 {
			return fmt.Sprintf("the driver's session is held by %v, %v", holders, err)
		}
		open, _, err := cgroup.Proc{Root: "/proc"}.Openers([]string{"/dev/nvidia", "/nvidiactl"})
		if err != nil {
			return err.Error()
		}
		for _, p := range d.daemons {
			if slices.ContainsFunc(open, func(o cgroup.Opener) bool { return o.PID == p.pid() }) {
				return fmt.Sprintf("%s has device nodes open: %+v", p.name(), open)
			}
		}
		return ""
	})
}

// sessions are how many were ever begun with the driver that is installed.
func (d *readers) sessions(t *testing.T) int {
	t.Helper()
	n, err := d.n.Sessions()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// scanWithoutSession waits until each daemon has scanned the machine a few times more. It fails the
// test if a session was begun since there were so many.
func (d *readers) scanWithoutSession(t *testing.T, sessions int) {
	t.Helper()
	scans := func(p *process) int { return len(p.log.grep("scanned")) }
	var before []int
	for _, p := range d.daemons {
		before = append(before, scans(p))
	}
	eventually(t, func() string {
		for i, p := range d.daemons {
			if n := scans(p) - before[i]; n < 3 {
				return fmt.Sprintf("%s has scanned %d times", p.name(), n)
			}
		}
		return ""
	})
	if more := d.sessions(t) - sessions; more != 0 {
		t.Errorf("%d sessions were begun under the release", more)
	}
	d.waitIdle(t)
}

// ended are how often each daemon has ended, by its name.
func (d *readers) ended() map[string]int {
	all := map[string]int{}
	for i, p := range d.daemons {
		all[p.name()] = d.ends[i]()
	}
	return all
}
