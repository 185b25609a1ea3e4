package chart

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/names"
	"github.com/heddle-dev/heddle/deviceplugin/health"
)

const devicePlugin = "heddle-device-plugin"

// renderDevice renders the chart with the device plugin on.
func renderDevice(t *testing.T, args ...string) rendered {
	t.Helper()
	return render(t, append([]string{"--set", "gpuDevice.deploy=true"}, args...)...)
}

func devicePod(t *testing.T, r rendered) corev1.PodSpec {
	t.Helper()
	return get[*appsv1.DaemonSet](t, r, "DaemonSet/"+devicePlugin).Spec.Template.Spec
}

func TestObjectsOfTheDevicePlugin(t *testing.T) {
	objects := renderDevice(t)
	got := slices.DeleteFunc(slices.Sorted(maps.Keys(objects)), func(id string) bool {
		return !strings.Contains(id, devicePlugin)
	})
	want := []string{
		"ClusterRole/heddle-device-plugin",
		"ClusterRoleBinding/heddle-device-plugin",
		"DaemonSet/heddle-device-plugin",
		"ServiceAccount/heddle-device-plugin",
		"ValidatingAdmissionPolicy/heddle-device-plugin",
		"ValidatingAdmissionPolicyBinding/heddle-device-plugin",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	wantRules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"deviceclasses"}, Verbs: []string{"list", "watch"}},
	}
	rules := get[*rbacv1.ClusterRole](t, objects, "ClusterRole/"+devicePlugin).Rules
	if diff := cmp.Diff(wantRules, rules); diff != "" {
		t.Errorf("permissions (-want +got):\n%s", diff)
	}
}

// The two daemons know nothing of each other.
func TestDevicePluginAlone(t *testing.T) {
	got := slices.Sorted(maps.Keys(renderDevice(t, "--set", "gpuLabel.deploy=false", "--set", "admissionPolicy.deploy=false")))
	want := []string{
		"ClusterRole/heddle-device-plugin", "ClusterRoleBinding/heddle-device-plugin", "ConfigMap/heddle-device-config",
		"DaemonSet/heddle-device-plugin", "ServiceAccount/heddle-device-plugin",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDeviceDaemonSet(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"default", nil},
		{"host", []string{
			"--set", "registry=registry.example.com/gpu/", "--set", "tag=v9", "--set", "imagePullSecrets[0].name=pull",
			"--set", "gpuDevice.driverAccess=host", "--set", "gpuDevice.driverRoot=/run/nvidia/driver",
			"--set", "gpuDevice.cdiHook=/usr/bin/nvidia-cdi-hook", "--set", "gpuDevice.gdrcopy=true",
			"--set", "gpuDevice.gds=true", "--set", "gpuDevice.takeover=true",
			"--set", "gpuDevice.kubeletDir=/data/kubelet", "--set", "gpuDevice.cdiDir=/etc/cdi",
			"--set", "gpuDevice.deviceListStrategy=envvar",
		}},
		{"replay", []string{
			"--set", "gpuDevice.machineConfigMap=dgx", "--set", "gpuDevice.machineKey=dgx-h100.json",
			"--set", "gpuDevice.replayDevices=/run/replay", "--set", "gpuDevice.driverAccess=host",
			"--set", "gpuDevice.runtimeClassName=nvidia", "--set", "config.existingConfigMap=mine",
			"--set", "gpuDevice.maxUnavailable=10%", "--set", "gpuDevice.metricsPort=19102",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			compare(t, "device-"+tt.name, "device-plugin", append([]string{"--set", "gpuDevice.deploy=true"}, tt.args...)...)
		})
	}
}

// What the container can touch of the host. Whoever adds to this list says why
// in docs/security.md.
func TestDevicePrivileges(t *testing.T) {
	pod := devicePod(t, renderDevice(t))
	unprivileged := &corev1.SecurityContext{
		RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)),
		ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if diff := cmp.Diff(unprivileged, pod.Containers[0].SecurityContext); diff != "" {
		t.Errorf("default (-want +got):\n%s", diff)
	}
	const kubelet = "/var/lib/kubelet/"
	paths := map[string]string{
		kubelet + "device-plugins": "rw", kubelet + "pod-resources": "ro", kubelet + "plugins_registry": "ro",
		"/var/run/cdi": "rw", "/var/lib/heddle/device-plugin": "rw", "/dev": "ro", "/": "ro",
	}
	if diff := cmp.Diff(paths, hostPaths(pod)); diff != "" {
		t.Errorf("host paths (-want +got):\n%s", diff)
	}
	if pod.HostPID || pod.HostIPC || !pod.HostNetwork {
		t.Errorf("hostPID %v, hostIPC %v, hostNetwork %v; want only the last", pod.HostPID, pod.HostIPC, pod.HostNetwork)
	}

	pod = devicePod(t, renderDevice(t, "--set", "gpuDevice.driverAccess=host"))
	privileged := &corev1.SecurityContext{Privileged: new(true), RunAsUser: new(int64(0)), ReadOnlyRootFilesystem: new(true)}
	if diff := cmp.Diff(privileged, pod.Containers[0].SecurityContext); diff != "" {
		t.Errorf("host (-want +got):\n%s", diff)
	}

	// A machine from a file needs no driver and nothing of /dev.
	pod = devicePod(t, renderDevice(t, "--set", "gpuDevice.driverAccess=host", "--set", "gpuDevice.machineConfigMap=dgx"))
	if diff := cmp.Diff(unprivileged, pod.Containers[0].SecurityContext); diff != "" {
		t.Errorf("replay (-want +got):\n%s", diff)
	}
	maps.DeleteFunc(paths, func(path, _ string) bool { return path == "/" || path == "/dev" })
	if diff := cmp.Diff(paths, hostPaths(pod)); diff != "" {
		t.Errorf("host paths of a replay (-want +got):\n%s", diff)
	}
}

// hostPaths are the host's directories in a container, and how.
func hostPaths(pod corev1.PodSpec) map[string]string {
	found := map[string]string{}
	for _, v := range pod.Volumes {
		for _, m := range pod.Containers[0].VolumeMounts {
			switch {
			case v.HostPath == nil || m.Name != v.Name:
			case m.ReadOnly:
				found[v.HostPath.Path] = "ro"
			default:
				found[v.HostPath.Path] = "rw"
			}
		}
	}
	return found
}

// What has one name on the host and inside: the kubelet dials sockets and the
// container runtime reads CDI specs by the paths that the daemon writes.
func TestDevicePathsAreTheHosts(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"--set", "gpuDevice.kubeletDir=/data/kubelet", "--set", "gpuDevice.cdiDir=/etc/cdi"},
		{"--set", "gpuDevice.machineConfigMap=dgx", "--set", "gpuDevice.replayDevices=/run/replay"},
	} {
		pod := devicePod(t, renderDevice(t, args...))
		inside := map[string]string{}
		for _, m := range pod.Containers[0].VolumeMounts {
			inside[m.Name] = m.MountPath
		}
		for _, v := range pod.Volumes {
			if v.HostPath != nil && v.Name != "driver-root" && inside[v.Name] != v.HostPath.Path {
				t.Errorf("%v: %s of the host is %s inside", args, v.HostPath.Path, inside[v.Name])
			}
		}
	}
}

// Both daemons are on every node's network, and a declared port would make the
// scheduler evict whoever has it.
func TestDaemonsShareTheNode(t *testing.T) {
	objects := renderDevice(t)
	ports := map[string]string{}
	for _, name := range []string{"heddle-feature-discovery", devicePlugin} {
		ds := get[*appsv1.DaemonSet](t, objects, "DaemonSet/"+name)
		c := ds.Spec.Template.Spec.Containers[0]
		if len(c.Ports) != 0 {
			t.Errorf("%s claims ports of the node: %v", name, c.Ports)
		}
		for _, arg := range c.Args {
			if port, ok := strings.CutPrefix(arg, "--metrics-address=:"); ok {
				ports[port] = name
				if c.LivenessProbe.HTTPGet.Port.String() != port || c.ReadinessProbe.HTTPGet.Port.String() != port {
					t.Errorf("%s listens on %s and is probed elsewhere", name, port)
				}
			}
		}
		want := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		if diff := cmp.Diff(want, ds.Spec.Template.Spec.Tolerations); diff != "" {
			t.Errorf("%s tolerates (-want +got):\n%s", name, diff)
		}
	}
	if len(ports) != 2 {
		t.Errorf("ports %v, want one each", ports)
	}
}

// A rollout leaves one node at a time without starts, and no longer than calls
// in flight may take.
func TestDeviceRollout(t *testing.T) {
	ds := get[*appsv1.DaemonSet](t, renderDevice(t), "DaemonSet/"+devicePlugin)
	if got := ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String(); got != "1" {
		t.Errorf("maxUnavailable %s", got)
	}
	// deviceplugin/plugin: 10 s to drain, 1 s to be canceled.
	const drain = 11 * time.Second
	grace := time.Duration(*ds.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
	if grace <= drain || grace > 2*drain {
		t.Errorf("grace period %s for a drain of %s", grace, drain)
	}
	if got := ds.Spec.Template.Spec.PriorityClassName; got != "system-node-critical" {
		t.Errorf("priority class %s", got)
	}
}

// deviceAttempt is a write to the Node n1 by the device plugin's token on n1.
func deviceAttempt() *attempt {
	a := &attempt{old: node(), new: node(), request: map[string]any{
		"name": "n1", "operation": "UPDATE", "userInfo": map[string]any{
			"username": "system:serviceaccount:heddle-system:heddle-device-plugin",
			"extra":    map[string]any{nodeNameKey: []string{"n1"}},
		},
	}}
	for _, n := range []*corev1.Node{a.old, a.new} {
		n.Status = corev1.NodeStatus{
			Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			Conditions: []corev1.NodeCondition{
				{Type: health.ConditionType, Status: corev1.ConditionTrue, Reason: health.ConditionReady},
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse},
			},
			Images: []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 7}},
		}
		n.Annotations[names.GPUTopology] = "{}"
	}
	return a
}

func TestDevicePolicy(t *testing.T) {
	const (
		ownNode = "heddle-device-plugin may write only the Node that its pod runs on, by the pod's own token"
		noLife  = "heddle-device-plugin may neither create nor delete a Node"
	)
	status := func(do func(*corev1.NodeStatus)) func(*attempt) {
		return func(a *attempt) {
			a.request["subResource"] = "status"
			do(&a.new.Status)
		}
	}
	fields := func(words string) []string { return []string{"heddle-device-plugin may not change " + words} }
	for _, tt := range []struct {
		name string
		do   func(*attempt)
		deny []string
	}{
		{name: "nothing", do: func(*attempt) {}},
		{name: "the annotation", do: func(a *attempt) { a.new.Annotations[names.GPUTopology] = `{"1":{}}` }},
		{name: "the annotation for the first time", do: func(a *attempt) { delete(a.old.Annotations, names.GPUTopology) }},
		{name: "the annotation removed", do: func(a *attempt) { delete(a.new.Annotations, names.GPUTopology) }},
		{
			name: "other annotations", do: func(a *attempt) {
				a.new.Annotations[names.OwnedTaints] = "[]"
				delete(a.new.Annotations, "node.alpha.kubernetes.io/ttl")
			},
			deny: fields("annotations heddle.dev/owned-taints, node.alpha.kubernetes.io/ttl"),
		},
		{name: "the condition", do: status(func(s *corev1.NodeStatus) {
			s.Conditions[0].Status, s.Conditions[0].Message = corev1.ConditionFalse, "GPU3: lost"
		})},
		{name: "the condition for the first time, at the end", do: func(a *attempt) {
			a.request["subResource"] = "status"
			a.old.Status.Conditions = a.old.Status.Conditions[1:]
			c := a.new.Status.Conditions
			a.new.Status.Conditions = append(slices.Clone(c[1:]), c[0])
		}},
		{name: "the condition removed", do: status(func(s *corev1.NodeStatus) { s.Conditions = s.Conditions[1:] })},
		{name: "the first condition of all", do: func(a *attempt) {
			a.request["subResource"] = "status"
			a.old.Status, a.new.Status = corev1.NodeStatus{}, corev1.NodeStatus{Conditions: a.new.Status.Conditions[:1]}
		}},
		{
			name: "the kubelet's condition", do: status(func(s *corev1.NodeStatus) { s.Conditions[1].Status = corev1.ConditionFalse }),
			deny: fields("conditions Ready"),
		},
		{
			name: "the kubelet's condition removed", do: status(func(s *corev1.NodeStatus) { s.Conditions = s.Conditions[:2] }),
			deny: fields("conditions DiskPressure"),
		},
		{
			name: "a second one of the kubelet's condition", do: status(func(s *corev1.NodeStatus) {
				s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse})
			}),
			deny: fields("conditions Ready"),
		},
		{
			name: "a new condition", do: status(func(s *corev1.NodeStatus) {
				s.Conditions = append(s.Conditions, corev1.NodeCondition{Type: "GPUReady", Status: corev1.ConditionTrue})
			}),
			deny: fields("conditions GPUReady"),
		},
		{
			name: "all conditions removed", do: status(func(s *corev1.NodeStatus) { s.Conditions = nil }),
			deny: fields("conditions Ready, DiskPressure"),
		},
		{
			name: "capacity", do: status(func(s *corev1.NodeStatus) { s.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("9")} }),
			deny: fields("status.capacity"),
		},
		{
			name: "an address", do: status(func(s *corev1.NodeStatus) {
				s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
			}),
			deny: fields("status.addresses"),
		},
		{name: "images removed", do: status(func(s *corev1.NodeStatus) { s.Images = nil }), deny: fields("status.images")},
		{
			name: "a label", do: func(a *attempt) { a.new.Labels["nvidia.com/gpu.product"] = "x" },
			deny: fields("metadata.labels"),
		},
		{
			name: "a label by the status", do: func(a *attempt) {
				a.request["subResource"] = "status"
				a.new.Labels["nvidia.com/gpu.product"] = "x"
			},
			deny: fields("metadata.labels"),
		},
		{
			name: "an annotation by the status", do: func(a *attempt) {
				a.request["subResource"] = "status"
				a.new.Annotations["example.com/x"] = "y"
			},
			deny: fields("annotations example.com/x"),
		},
		{name: "a taint removed", do: func(a *attempt) { a.new.Spec.Taints = nil }, deny: fields("spec.taints")},
		{name: "cordoned", do: func(a *attempt) { a.new.Spec.Unschedulable = true }, deny: fields("spec.unschedulable")},
		{name: "a finalizer", do: func(a *attempt) { a.new.Finalizers = []string{"a/b"} }, deny: fields("metadata.finalizers")},
		{name: "what the API server writes", do: func(a *attempt) {
			a.new.ResourceVersion, a.new.Generation, a.new.ManagedFields = "8", 2, nil
		}},
		{
			name: "another subresource", do: func(a *attempt) { a.request["subResource"] = "proxy" },
			deny: []string{noLife},
		},
		{name: "another Node", do: func(a *attempt) { a.request["name"] = "n2" }, deny: []string{ownNode}},
		{name: "a token without a node", do: func(a *attempt) { a.user()["extra"] = map[string]any{} }, deny: []string{ownNode}},
		{name: "a token without anything", do: func(a *attempt) { delete(a.user(), "extra") }, deny: []string{ownNode}},
		{
			name: "a token with two nodes", do: func(a *attempt) {
				a.user()["extra"] = map[string]any{nodeNameKey: []string{"n1", "n2"}}
			},
			deny: []string{ownNode},
		},
		{
			name: "a new Node", do: func(a *attempt) { a.request["operation"], a.old, a.new = "CREATE", nil, &corev1.Node{} },
			deny: []string{noLife},
		},
		{
			name: "a Node deleted", do: func(a *attempt) { a.request["operation"], a.old, a.new = "DELETE", &corev1.Node{}, nil },
			deny: []string{noLife},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := deviceAttempt()
			tt.do(a)
			p := policyOf(t, renderDevice(t), devicePlugin)
			if !p.matches(t, a) {
				t.Fatal("the policy does not look at the request")
			}
			if diff := cmp.Diff(tt.deny, p.denials(t, a)); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
			for _, other := range []string{"system:node:n1", "system:serviceaccount:heddle-system:heddle-feature-discovery"} {
				a.user()["username"] = other
				if p.matches(t, a) {
					t.Errorf("the policy looks at requests of %s", other)
				}
			}
		})
	}
}

// The policy allows exactly what the code writes, and looks at nothing but
// Nodes: one that fails closed on pods would stop the cluster with its own bug.
func TestDevicePolicyKeys(t *testing.T) {
	p := policyOf(t, renderDevice(t), devicePlugin)
	got := map[string][]string{
		"annotations": p.texts(t, "allowedAnnotations"), "conditions": p.texts(t, "allowedConditions"),
		"resources": p.spec.MatchConstraints.ResourceRules[0].Resources,
	}
	want := map[string][]string{
		"annotations": {names.GPUTopology}, "conditions": {health.ConditionType}, "resources": {"nodes", "nodes/status"},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(p.spec.MatchConstraints.ResourceRules) != 1 {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A kubelet lists 50 images and more; every write of the condition passes by
// them and by everybody else's labels.
func TestDevicePolicyOnALargeNode(t *testing.T) {
	a := deviceAttempt()
	a.request["subResource"] = "status"
	for i := range 300 {
		key := fmt.Sprintf("somebody.example.com/label-%d", i)
		for _, n := range []*corev1.Node{a.old, a.new} {
			n.Labels[key], n.Annotations[key] = "x", strings.Repeat("x", 500)
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{key, key + "@sha256"}, SizeBytes: 1})
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(key)})
			n.ManagedFields = append(n.ManagedFields, managed(key, metav1.ManagedFieldsOperationUpdate, key))
		}
	}
	a.new.Status.Conditions[0].Status = corev1.ConditionFalse
	if got := policyOf(t, renderDevice(t), devicePlugin).denials(t, a); got != nil {
		t.Errorf("denials: %q", got)
	}
}
