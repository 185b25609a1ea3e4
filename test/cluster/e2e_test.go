//go:build e2e && linux

package cluster

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/cluster/image"
)

// TestCluster is one story, because every chapter needs the cluster of the one before.
func TestCluster(t *testing.T) {
	if missing := Preflight(""); len(missing) > 0 {
		t.Skipf("this machine lacks: %+v", missing)
	}
	before := snapshot(t)
	first := up(t, Options{Name: "e2e-a", Kwok: true})
	if _, err := Up(t.Context(), Options{Name: "e2e-a"}); !errors.Is(err, ErrRunning) {
		t.Fatalf("second Up of a running cluster: %v, want ErrRunning", err)
	}
	t.Run("packed image", func(t *testing.T) { packedImage(t, first) })
	t.Run("in-cluster clients", func(t *testing.T) { inCluster(t, first) })
	t.Run("node directories", func(t *testing.T) { nodeDirectories(t, first) })
	t.Run("kubelet restart", func(t *testing.T) { kubeletRestart(t, first) })
	t.Run("containerd restart", func(t *testing.T) { containerdRestart(t, first) })
	t.Run("simulated node", func(t *testing.T) { simulatedNode(t, first) })
	t.Run("two clusters", func(t *testing.T) {
		second := up(t, Options{Name: "e2e-b", Node: "other", Kubelet: map[string]any{
			"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node", "reservedSystemCPUs": "0",
		}})
		for _, c := range []*Cluster{first, second} {
			if s := c.Status(t.Context()); !s.Running() {
				t.Errorf("with two clusters up: %+v", s)
			}
		}
		// The first comes down first: it must not restore what the second still needs.
		down(t, first)
		if s := second.Status(t.Context()); !s.Running() {
			t.Errorf("after the other came down: %+v", s)
		}
		down(t, second)
	})
	t.Run("killed run", killedRun)
	after := snapshot(t)
	for name, want := range before {
		if got, known := after[name]; known && got != want {
			t.Errorf("%s = %q after everything is down, was %q", name, got, want)
		}
	}
}

func up(t *testing.T, o Options) *Cluster {
	t.Helper()
	o.Replace = o.Name != "e2e-killed"
	o.Log = t.Output()
	c, err := Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, c) })
	return c
}

// down also checks that nothing is left. A second down finds nothing to do.
func down(t *testing.T, c *Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	start := time.Now()
	if err := c.Down(ctx); err != nil {
		t.Errorf("down: %v", err)
	}
	t.Logf("%s: down after %.1f s", c.Name(), time.Since(start).Seconds())
	if pids := c.cgroups.procs(""); len(pids) > 0 {
		t.Errorf("processes left: %v", pids)
	}
	for _, h := range c.cgroups.hierarchies {
		if _, err := os.Stat(filepath.Join(h.dir, c.state.Cgroup)); err == nil {
			t.Errorf("cgroup left in %s", h.dir)
		}
	}
	if _, err := os.Stat(c.Dir()); err == nil {
		t.Errorf("state left: %s", c.Dir())
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), c.Dir()) {
		t.Errorf("mounts left below %s (or %v)", c.Dir(), err)
	}
}

// snapshot is what a cluster might leave changed on the machine.
func snapshot(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, name := range kubeletSysctls() {
		if _, err := os.Stat(hostSysctls().record); err == nil {
			continue // Another cluster of this machine holds them at its kubelet's values.
		}
		data, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			data = []byte(err.Error())
		}
		found["sysctl "+name] = strings.TrimSpace(string(data))
	}
	for _, dir := range append(binds(), "/run/containerd", "/run/netns") {
		_, err := os.Stat(dir)
		found["exists "+dir] = map[bool]string{true: "yes", false: "no"}[err == nil]
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		for _, dir := range append(binds(), overlays()...) {
			if fields := strings.Fields(line); dir != "/run" && len(fields) > 4 && strings.HasPrefix(fields[4], dir) {
				found["mounts"] += line
			}
		}
	}
	return found
}

func kubectl(t *testing.T, c *Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func apply(t *testing.T, c *Cluster, manifest string) {
	t.Helper()
	if err := c.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
}

func waitLog(t *testing.T, c *Cluster, pod, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out string
	err := poll(ctx, 200*time.Millisecond, func() (bool, error) {
		out, _ = c.Kubectl(ctx, "logs", pod)
		return strings.Contains(out, want), nil
	})
	if err != nil {
		t.Errorf("logs of %s: want %q in:\n%s", pod, want, out)
	}
}

// packedImage runs a dynamically linked program in an image that holds nothing
// but it and what it was found to need.
func packedImage(t *testing.T, c *Cluster) {
	t.Helper()
	files := map[string]string{}
	for _, name := range []string{"bash", "sleep"} {
		file, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		files["/bin/"+name] = file
	}
	archive := filepath.Join(t.TempDir(), "shell.tar")
	err := image.Pack(archive, image.Spec{
		Name: "localhost/shell:1", Files: files, Env: []string{"WORD=packed"},
		Entrypoint: []string{"/bin/bash", "-c", "echo it is $WORD; exec /bin/sleep 3600"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.LoadImage(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	apply(t, c, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shell"}, "spec": {
		"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "localhost/shell:1"}]}}`)
	kubectl(t, c, "wait", "--for=condition=Ready", "pod/shell", "--timeout=60s")
	waitLog(t, c, "shell", "it is packed")
	if out := kubectl(t, c, "exec", "shell", "--", "/bin/bash", "-c", "echo exec $((6*7))"); out != "exec 42\n" {
		t.Errorf("exec wrote %q", out)
	}
}

func inCluster(t *testing.T, c *Cluster) {
	t.Helper()
	for name, host := range map[string]string{"api-bridged": "false", "api-host": "true"} {
		apply(t, c, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "`+name+`"}, "spec": {
			"hostNetwork": `+host+`, "terminationGracePeriodSeconds": 1, "containers": [{"name": "c",
			"image": "`+ProbeImage+`", "env": [{"name": "PROBE_API", "value": "1"}]}]}}`)
		waitLog(t, c, name, "API 201")
	}
}

// nodeDirectories: a CDI spec written on the host is used on the node, and the
// kubelet's plugin socket can be dialed from the host.
func nodeDirectories(t *testing.T, c *Cluster) {
	t.Helper()
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi"} {
		host := c.NodeDir(dir)
		if err := os.MkdirAll(host, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(host, "probe.json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := c.NodeExec(t.Context(), "ls", dir); err != nil || out != "probe.json\n" {
			t.Errorf("%s on the node: %q, %v", dir, out, err)
		}
		if err := os.Remove(filepath.Join(host, "probe.json")); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(c.NodeDir("/var/lib/kubelet/device-plugins"), "kubelet.sock")
	if info, err := os.Stat(socket); err != nil || info.Mode().Type() != os.ModeSocket {
		t.Errorf("kubelet's plugin socket seen from the host: %v, %v", info, err)
	}
}

func podState(t *testing.T, c *Cluster) string {
	t.Helper()
	return kubectl(t, c, "get", "pod", "shell", "-o",
		"jsonpath={.status.phase} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].containerID}")
}

func kubeletRestart(t *testing.T, c *Cluster) {
	t.Helper()
	before := podState(t, c)
	old, _ := loadPID(c.pidFile(compKubelet))
	if err := c.RestartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now, _ := loadPID(c.pidFile(compKubelet)); now == old || !now.alive() {
		t.Errorf("kubelet is %+v, was %+v", now, old)
	}
	if err := c.WaitNodeReady(t.Context(), c.Node()); err != nil {
		t.Fatal(err)
	}
	if after := podState(t, c); after != before || !strings.HasPrefix(after, "Running 0") {
		t.Errorf("pod is %q after the restart, was %q", after, before)
	}
}

func containerdRestart(t *testing.T, c *Cluster) {
	t.Helper()
	before := podState(t, c)
	if err := c.StopContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitNodeReady(t.Context(), c.Node()); err != nil {
		t.Fatal(err)
	}
	// The kubelet does not exec until it has listed the runtime's pods again.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := poll(ctx, 200*time.Millisecond, func() (bool, error) {
		out, err := c.Kubectl(ctx, "exec", "shell", "--", "/bin/bash", "-c", "echo back")
		return err == nil && out == "back\n", nil
	})
	if err != nil {
		t.Errorf("exec after the restart: %v", err)
	}
	if after := podState(t, c); after != before {
		t.Errorf("pod is %q after the restart, was %q", after, before)
	}
}

func simulatedNode(t *testing.T, c *Cluster) {
	t.Helper()
	err := c.AddSimulatedNode(t.Context(), SimulatedNode{
		Name: "sim1", Labels: map[string]string{"fleet": "sim"}, Annotations: map[string]string{"example.com/rack": "r1"},
		Capacity: map[string]string{"example.com/gpu": "8"},
		Taints:   []Taint{{Key: "sim", Effect: "NoSchedule"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WaitNodeReady(t.Context(), "sim1"); err != nil {
		t.Fatal(err)
	}
	apply(t, c, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "simulated"}, "spec": {
		"nodeSelector": {"fleet": "sim"}, "tolerations": [{"operator": "Exists"}],
		"containers": [{"name": "c", "image": "none", "resources": {"limits": {"example.com/gpu": "4"}}}]}}`)
	kubectl(t, c, "wait", "--for=condition=Ready", "pod/simulated", "--timeout=60s")
	if out := kubectl(t, c, "get", "pod", "simulated", "-o", "jsonpath={.spec.nodeName}"); out != "sim1" {
		t.Errorf("simulated pod runs on %q", out)
	}
	// The controller must leave the real node alone.
	if out := kubectl(t, c, "get", "node", c.Node(), "-o", "jsonpath={.status.nodeInfo.kubeletVersion}"); out[0] != 'v' ||
		strings.Contains(out, "kwok") {
		t.Errorf("real node reports kubelet %q", out)
	}
}

// killedRun: the owner of the cluster died, and part of it too. The next Up of
// the same name has to succeed without a hint.
func killedRun(t *testing.T) {
	c := up(t, Options{Name: "e2e-killed"})
	for _, component := range []string{compHolder, compKubelet, compAPIServer} {
		p, ok := loadPID(c.pidFile(component))
		if !ok || !p.alive() {
			t.Fatalf("%s does not run", component)
		}
		if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	again := up(t, Options{Name: "e2e-killed"})
	if s := again.Status(t.Context()); !s.Running() {
		t.Errorf("after a killed run: %+v", s)
	}
	down(t, again)
}
