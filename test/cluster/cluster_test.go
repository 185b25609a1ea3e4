//go:build linux

package cluster

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestKubeletConfig(t *testing.T) {
	data, err := kubeletConfig("/state", containerdSocket, "/heddle-x/node", map[string]any{
		"cpuManagerPolicy": "static", "maxPods": 500,
		"evictionHard": map[string]any{"memory.available": "1Gi"},
	}, map[string]bool{"A": true})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"cpuManagerPolicy": "static", "maxPods": 500.0, "cgroupRoot": "/heddle-x/node", "failCgroupV1": false,
		"cgroupDriver": "cgroupfs", "featureGates": map[string]any{"A": true}, "resolvConf": "/state/resolv.conf",
		"evictionHard": map[string]any{
			"memory.available": "1Gi", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%",
		},
	} {
		if diff := cmp.Diff(want, got[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
}

func TestMaxPodsDefault(t *testing.T) {
	data, err := kubeletConfig("/state", containerdSocket, "/x", nil, nil)
	if err != nil || !strings.Contains(string(data), `"maxPods": 110`) || strings.Contains(string(data), "featureGates") {
		t.Errorf("kubelet configuration: %v\n%s", err, data)
	}
}

func TestContainerdConfig(t *testing.T) {
	got := string(containerdConfig("/state", "/bin/runc-1", "/plugins"))
	for _, want := range []string{
		`root = "/state/containerd"`, `BinaryName = "/bin/runc-1"`, `bin_dirs = ["/plugins"]`, `conf_dir = "/state/cni"`,
		`cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]`, `sandbox = "localhost/pause:1"`, "restrict_oom_score_adj = true",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "@") {
		t.Errorf("a placeholder is left in\n%s", got)
	}
	if !json.Valid(cniConfig()) {
		t.Errorf("not JSON: %s", cniConfig())
	}
}

func TestCRIOFiles(t *testing.T) {
	s := state{Dir: "/state", CRIO: "/programs"}
	all := map[string]string{}
	for _, f := range crioFiles(s.Dir, s.CRIO, "/bin/runc-1", "/plugins") {
		all[f.name] = string(f.data)
	}
	got := all["crio.conf"]
	for _, want := range []string{
		`root = "/state/crio/root"`, `runtime_path = "/bin/runc-1"`, `plugin_dirs = ["/plugins"]`, `network_dir = "/state/cni"`,
		`pinns_path = "/programs/pinns"`, `listen = "/run/crio/crio.sock"`, `signature_policy = "/state/policy.json"`,
		`pause_image = "localhost/pause:1"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "@") || !json.Valid([]byte(all["policy.json"])) {
		t.Errorf("a placeholder is left, or the policy is no JSON:\n%s", all)
	}
	kubelet, err := kubeletConfig(s.Dir, s.socket(), "/x", nil, nil)
	if err != nil || !strings.Contains(string(kubelet), `"unix:///run/crio/crio.sock"`) {
		t.Errorf("kubelet configuration: %v\n%s", err, kubelet)
	}
	if got := s.command(s.runtime()); !slices.Contains(got, "--config=/state/crio.conf") || got[0] != "/programs/crio" {
		t.Errorf("CRI-O is started by %q", got)
	}
}

func TestMountedControllers(t *testing.T) {
	const header = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
	for name, tt := range map[string]struct{ text, want string }{
		"v1":        {header + "cpu\t1\t16\t1\nhugetlb\t0\t16\t1\npids\t8\t16\t1\n", "cpu\t1\t16\t1\npids\t8\t16\t1\n"},
		"v2":        {header + "cpu\t0\t16\t1\nhugetlb\t0\t16\t1\n", ""},
		"no fields": {header + "\ncpu 1\n", ""},
	} {
		if got := mountedControllers(tt.text); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestCommands(t *testing.T) {
	s := state{
		Dir: "/state", Node: "n", NodeLease: time.Hour, FeatureGates: map[string]bool{"B": false, "A": true},
		APIServerArgs: []string{"--runtime-config=x/v1=true"}, Binaries: Binaries{Kubernetes: "/k8s", Kwok: "/kwok"},
	}
	const gates = "--feature-gates=A=true,B=false"
	for component, wants := range map[string][]string{
		compAPIServer: {"/k8s/kube-apiserver", gates, "--runtime-config=x/v1=true", "--secure-port=443"},
		compKCM:       {"/k8s/kube-controller-manager", gates, "--root-ca-file=/state/pki/ca.crt", "--node-monitor-grace-period=1h0m10s"},
		compScheduler: {"/k8s/kube-scheduler", gates, "--kubeconfig=/state/pki/kube-scheduler.kubeconfig"},
		compKubelet:   {"/k8s/kubelet", "--hostname-override=n", "--config=/state/kubelet.json"},
		compKwok: {
			"/kwok", "--config=/stages.yaml", "--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
			"--node-lease-duration-seconds=3600",
		},
	} {
		got := s.command(component)
		for _, want := range wants {
			if !slices.Contains(got, want) {
				t.Errorf("%s: no %s in %q", component, want, got)
			}
		}
	}
	if got := (state{}).command(compKwok); !slices.Contains(got, "--node-lease-duration-seconds=40") {
		t.Errorf("nodes do not renew their leases as kubelets do: %q", got)
	}
	if got := s.command(compEtcd); slices.Contains(got, gates) {
		t.Errorf("etcd knows no feature gates: %q", got)
	}
}

func TestNodeDir(t *testing.T) {
	c := &Cluster{state: state{Dir: "/s"}}
	for path, want := range map[string]string{
		"/var/lib/kubelet/device-plugins/": "/s/node/var/lib/kubelet/device-plugins",
		"/var/run/cdi":                     "/s/node/run/cdi",
		"/run":                             "/s/node/run",
		"/etc/cdi":                         "/s/node/etc/cdi",
		"/runner":                          "/runner",
		"/dev/null":                        "/dev/null",
	} {
		if got := c.NodeDir(path); got != want {
			t.Errorf("NodeDir(%s) = %s, want %s", path, got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, ok := range map[string]bool{
		"": true, "a": true, "e2e-1": true, "-a": false, "A": false, "../x": false, "a/b": false, strings.Repeat("a", 21): false,
	} {
		o, err := Options{Name: name, Cache: t.TempDir()}.withDefaults()
		if (err == nil) != ok {
			t.Errorf("name %q: %v", name, err)
		}
		if ok && (o.Name == "" || o.Node != "node1" || o.Log == nil) {
			t.Errorf("defaults: %+v", o)
		}
	}
	a := Options{Name: "x", Cache: "/a"}.state(Binaries{})
	b := Options{Name: "x", Cache: "/b"}.state(Binaries{})
	if a.Cgroup == b.Cgroup {
		t.Errorf("clusters of two caches share the cgroup %s", a.Cgroup)
	}
}

func TestOpenNothing(t *testing.T) {
	if _, err := Open(Options{Cache: t.TempDir()}); !errors.Is(err, ErrNotUp) {
		t.Errorf("Open: %v, want ErrNotUp", err)
	}
}

func TestPKI(t *testing.T) {
	dir := t.TempDir()
	p, err := newPKI(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.writeAll("node1", "https://10.96.0.1:443", nil); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"admin", "kubelet", "kube-scheduler", "kube-controller-manager"} {
		data, err := os.ReadFile(filepath.Join(dir, user+".kubeconfig"))
		if err != nil || !json.Valid(data) || strings.Count(string(data), "https://10.96.0.1:443") != 1 {
			t.Errorf("%s.kubeconfig: %v\n%s", user, err, data)
		}
	}
	if _, err := lazyClient(filepath.Dir(dir))(); err == nil {
		t.Error("a client without certificates")
	}
}

func TestSimulatedNodeObject(t *testing.T) {
	data, err := json.Marshal(SimulatedNode{
		Name: "s", Annotations: map[string]string{"a": "b"}, Capacity: map[string]string{"cpu": "8", "example.com/gpu": "2"},
		Taints: []Taint{{Key: "k", Effect: "NoSchedule"}},
	}.object())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"kwok.x-k8s.io/node":"fake"`, `"a":"b"`, `"cpu":"8"`, `"example.com/gpu":"2"`, `"pods":"110"`,
		`"taints":[{"key":"k","effect":"NoSchedule"}]`, `"kubernetes.io/hostname":"s"`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %s in %s", want, data)
		}
	}
	if err := (&Cluster{}).AddSimulatedNode(t.Context(), SimulatedNode{Name: "s"}); err == nil {
		t.Error("a simulated node without kwok")
	}
}
