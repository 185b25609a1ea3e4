package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

const devicePlugin = "heddle-device-plugin"

// renderDevice renders the chart with the device plugin on.
func renderDevice(t *testing.T, args ...string) rendered {
	t.Helper()
	return render(t, append([]string{"--set", "gpuDevice.enabled=true"}, args...)...)
}

func devicePod(t *testing.T, r rendered) corev1.PodSpec {
	t.Helper()
	return get[*appsv1.DaemonSet](t, r, "DaemonSet/"+devicePlugin).Spec.Template.Spec
}

// Evicting takes a right that no policy narrows, so it is given only where a
// rejected pod is evicted.
func TestEvictionRight(t *testing.T) {
	const shared = "config.cluster.mode=sgpu"
	for _, tt := range []struct {
		name string
		sets []string
		want bool
	}{
		{"native", nil, false},
		{"native, with a duration", []string{"config.cluster.sgpu.rejectedFor=5m"}, false},
		{"shared", []string{shared}, true},
		{"shared on some nodes", []string{"config.nodes[0].nodeName=n1", "config.nodes[0].mode=sgpu"}, true},
		{"an existing ConfigMap", []string{"config.existingConfigMap=mine"}, true},
		{"shared on every node", []string{"gpuDevice.sGPUHybridMode=true"}, true},
		{"shared on every node, never", []string{"gpuDevice.sGPUHybridMode=true", "config.cluster.sgpu.rejectedFor=0s"}, false},
		{"an existing ConfigMap, described", []string{"config.existingConfigMap=mine", "config.cluster.sgpu.rejectedFor=0s"}, false},
		{"never", []string{shared, "config.cluster.sgpu.rejectedFor=0s"}, false},
		{"never, spelled longer", []string{shared, "config.cluster.sgpu.rejectedFor=0h0.0m0s"}, false},
		{"soon", []string{shared, "config.cluster.sgpu.rejectedFor=0.5s"}, true},
		{"never but on some nodes", []string{
			shared, "config.cluster.sgpu.rejectedFor=0s", "config.nodes[0].nodeName=n1", "config.nodes[0].sgpu.rejectedFor=10s",
		}, true},
		{"never, with other keys for some nodes", []string{
			shared, "config.cluster.sgpu.rejectedFor=0s", "config.nodes[0].nodeName=n1", "config.nodes[0].sgpu.slotsPerGPU=8",
		}, false},
		{"strict HCAs", []string{"config.cluster.rdma.resources[0].name=rdma/a", "config.cluster.rdma.resources[0].count=strict"}, true},
		{"never, with enforcer evict", []string{
			shared, "config.cluster.sgpu.rejectedFor=0s", "config.cluster.sgpu.enforce.memory=evict", "gpuDevice.usageMetrics=true",
		}, true},
		{"never on some nodes", []string{shared, "config.nodes[0].nodeName=n1", "config.nodes[0].sgpu.rejectedFor=0s"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var args []string
			for _, set := range tt.sets {
				args = append(args, "--set", set)
			}
			rules := get[*rbacv1.ClusterRole](t, renderDevice(t, args...), "ClusterRole/"+devicePlugin).Rules
			want := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}}
			got := slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return cmp.Equal(r, want) })
			if got != tt.want {
				t.Errorf("may evict: %t", got)
			}
			for _, r := range rules {
				if slices.ContainsFunc(r.Resources, func(s string) bool { return strings.HasPrefix(s, "pods/") }) && !cmp.Equal(r, want) {
					t.Errorf("another right about pods: %v", r)
				}
			}
		})
	}
}

// What the configuration asks of enforcers and the chart does not give is
// rejected before anything is installed.
func TestEnforcersThatTheChartLacks(t *testing.T) {
	const image = "gpuDevice.preload.image=localhost/vgpu:1"
	const library = "config.cluster.sgpu.enforce.preloadLibrary=/usr/local/vgpu/libvgpu.so"
	for _, tt := range []struct{ name, sets, want string }{
		{"mps for memory", "config.cluster.sgpu.enforce.memory=mps", "asks for mps: set gpuDevice.mps too"},
		{"mps for compute, on some nodes", "config.nodes[0].nodeName=n,config.nodes[0].sgpu.enforce.compute=mps", "asks for mps: set gpuDevice.mps too"},
		{"mps, and it is there", "gpuDevice.mps=true,config.cluster.sgpu.enforce.compute=mps", ""},
		{"mps of a replayed machine", "gpuDevice.machineConfigMap=dgx,config.cluster.sgpu.enforce.compute=mps", ""},
		{"mps in a driver container", "gpuDevice.mps=true,driver.root=/opt/driver", "use driver.access=runtime"},
		{"a library on the host", library, ""},
		{"a library of an image", image, ""},
		{"a library of an image, and another one", image + "," + library, "and sgpu.enforce.preloadLibrary in config is /usr/local/vgpu/libvgpu.so: leave that out"},
		{"a library of an image, and a ConfigMap", image + ",config.existingConfigMap=mine," + library, ""},
		{"dmem without its hook", "config.cluster.sgpu.enforce.memory=dmem", "asks for dmem: set gpuDevice.cdiHook too"},
		{"evict, and nothing is measured", "config.cluster.sgpu.enforce.memory=evict", "asks for evict: set gpuDevice.usageMetrics too"},
		{"preload of nothing", "config.cluster.sgpu.enforce.memory=preload", "asks for preload: set sgpu.enforce.preloadLibrary too"},
		{"preload, of the cluster's library", library + ",config.nodes[0].nodeName=n,config.nodes[0].sgpu.enforce.compute=preload", ""},
		{"empty overrides", "config.nodes[0].nodeName=n,config.nodes[0].sgpu.enforce=null,config.nodes[1].nodeName=m,config.nodes[1].sgpu=null", ""},
		{"shares without CDI", "config.cluster.mode=sgpu,gpuDevice.deviceListStrategy=envvar", "mode: sgpu in config takes gpuDevice.deviceListStrategy=cdi"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := helm(t, "template", generated, chartDir, "-n", namespace, "--set", "gpuDevice.enabled=true", "--set", tt.sets)
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// The documented command for shares on every node.
func TestHybridMode(t *testing.T) {
	want := render(t, "--set", "gpuDevice.enabled=true,config.cluster.mode=sgpu")
	if diff := cmp.Diff(want, render(t, "--set", "gpuDevice.sGPUHybridMode=true")); diff != "" {
		t.Errorf("not what config.cluster.mode=sgpu makes (-want +got):\n%s", diff)
	}
}

// Whatever --root-dir a kubelet has, it takes registrations in one place, and has all else below that directory.
func TestKubeletRootDir(t *testing.T) {
	pod := devicePod(t, renderDevice(t, "--set", "gpuDevice.kubeletDir=/data/kubelet"))
	got := map[string]string{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil && strings.Contains(v.HostPath.Path, "kubelet") {
			got[v.Name] = v.HostPath.Path
		}
	}
	want := map[string]string{
		"device-plugins": "/var/lib/kubelet/device-plugins", "pod-resources": "/data/kubelet/pod-resources",
		"plugins-registry": "/data/kubelet/plugins_registry",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("directories of the kubelet (-want +got):\n%s", diff)
	}
}

// Each daemon that reads GPUs gets the host's root and may open the devices there, without a value and without
// a part of NVIDIA's runtime; with driver.access=runtime none has a privilege.
func TestDriverAccess(t *testing.T) {
	for access, host := range map[string]bool{"auto": true, "runtime": false} {
		objects := renderDevice(t, "--set", "driver.access="+access, "--set", "gpuDevice.mps=true",
			"--set", "topoDiscovery.enabled=true", "--set", "topoDiscovery.worker.infiniband=false")
		for _, name := range []string{"heddle-feature-discovery", devicePlugin, "heddle-topo-worker", "heddle-mps"} {
			c := get[*appsv1.DaemonSet](t, objects, "DaemonSet/"+name).Spec.Template.Spec.Containers[0]
			visible := c.Env[slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "NVIDIA_VISIBLE_DEVICES" })].Value
			mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.MountPath == "/host" && m.ReadOnly && *m.MountPropagation == corev1.MountPropagationHostToContainer
			})
			privileged := c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
			if privileged != host || (visible == "void") != host || mounted != (host || name == devicePlugin) {
				t.Errorf("%s with %s: privileged %t, visible %s, the host's root %t", name, access, privileged, visible, mounted)
			}
		}
	}
}

// Probes go where the daemons of the host's network listen.
func TestBindAddress(t *testing.T) {
	for address, listen := range map[string]string{"127.0.0.1": "127.0.0.1", "::1": "[::1]"} {
		objects := renderDevice(t, "--set", "bindAddress="+address, "--set", "topoDiscovery.enabled=true")
		for _, name := range []string{"heddle-feature-discovery", devicePlugin, "heddle-topo-worker"} {
			c := get[*appsv1.DaemonSet](t, objects, "DaemonSet/"+name).Spec.Template.Spec.Containers[0]
			live, ready := c.LivenessProbe.HTTPGet, c.ReadinessProbe.HTTPGet
			if want := "--metrics-address=" + listen + ":" + live.Port.String(); !slices.Contains(c.Args, want) {
				t.Errorf("%s has no %s: %v", name, want, c.Args)
			}
			if live.Host != address || ready.Host != address || live.Path != "/healthz" || ready.Path != "/readyz" {
				t.Errorf("%s is probed at %+v and %+v", name, live, ready)
			}
		}
	}
}

// What has one name on the host and inside: the kubelet dials sockets and the
// container runtime reads CDI specs by the paths that the daemon writes.
func TestDevicePathsAreTheHosts(t *testing.T) {
	elsewhere := []string{"host", "pod-resources", "plugins-registry"}
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
			if v.HostPath != nil && !slices.Contains(elsewhere, v.Name) && inside[v.Name] != v.HostPath.Path {
				t.Errorf("%v: %s of the host is %s inside", args, v.HostPath.Path, inside[v.Name])
			}
		}
	}
}

// With claims the chart brings the classes, the rights, and the directories at their paths on the host.
func TestClaims(t *testing.T) {
	const on = "gpuDevice.claims.enabled=true"
	classes := func(r rendered) (names []string) {
		for id := range r {
			if name, ok := strings.CutPrefix(id, "DeviceClass/"); ok {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	if got := classes(renderDevice(t)); got != nil {
		t.Errorf("classes by default: %v", got)
	}
	r := renderDevice(t, "--kube-version", "1.34.0", "--set", on+",gpuDevice.kubeletDir=/data/kubelet")
	want := []string{"gpu-hca.heddle.dev", "gpu.heddle.dev", "hca.heddle.dev", "imex.heddle.dev", "mig.heddle.dev", "monitor.heddle.dev", "sgpu.heddle.dev"}
	if diff := cmp.Diff(want, classes(r)); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
	for name, resource := range map[string]string{"gpu.heddle.dev": "nvidia.com/gpu", "sgpu.heddle.dev": ""} {
		got := ""
		if stands := get[*resourcev1.DeviceClass](t, r, "DeviceClass/"+name).Spec.ExtendedResourceName; stands != nil {
			got = *stands
		}
		if got != resource {
			t.Errorf("%s stands for %q, want %q", name, got, resource)
		}
	}
	pod := devicePod(t, r)
	const dir = "/data/kubelet/plugins/devices.heddle.dev"
	if !slices.Contains(pod.Containers[0].Args, "--claims-dir="+dir) {
		t.Errorf("arguments %v", pod.Containers[0].Args)
	}
	mounts := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		if !m.ReadOnly {
			mounts[m.Name] = m.MountPath
		}
	}
	if mounts["dra-driver"] != dir || mounts["plugins-registry"] != "/var/lib/kubelet/plugins_registry" {
		t.Errorf("writable mounts %v", mounts)
	}
	rules := get[*rbacv1.ClusterRole](t, r, "ClusterRole/"+devicePlugin).Rules
	if !slices.ContainsFunc(rules, func(p rbacv1.PolicyRule) bool {
		return slices.Contains(p.Resources, "resourceslices") && slices.Contains(p.Verbs, "create")
	}) {
		t.Error("the daemon may not write ResourceSlices")
	}
	if _, err := helm(t, "template", generated, chartDir, "--set", "localImages=true,config.cluster.mode=claims"); err == nil ||
		!strings.Contains(err.Error(), "mode: claims in config needs gpuDevice.claims.enabled=true") {
		t.Errorf("mode claims without the driver: %v", err)
	}
	if _, err := helm(t, "template", generated, chartDir, "--kube-version", "1.33.0", "--set", on+",localImages=true"); err == nil ||
		!strings.Contains(err.Error(), "needs Kubernetes 1.34") {
		t.Errorf("on Kubernetes 1.33: %v", err)
	}
	const imex = "topoDiscovery.master.exports={labels,imex}"
	if _, err := helm(t, "template", generated, chartDir, "--set", "localImages=true,topoDiscovery.enabled=true,"+imex); err == nil ||
		!strings.Contains(err.Error(), "imex needs gpuDevice.claims.enabled") {
		t.Errorf("channels without claims: %v", err)
	}
	for set, want := range map[string][]string{on: {"list", "delete"}, on + "," + imex: {"list", "delete", "create", "patch"}} {
		rules := get[*rbacv1.ClusterRole](t, renderTopo(t, "--set", set), "ClusterRole/"+topoMaster).Rules
		at := slices.IndexFunc(rules, func(p rbacv1.PolicyRule) bool { return slices.Contains(p.Resources, "resourceslices") })
		if at < 0 || !slices.Equal(rules[at].Verbs, want) {
			t.Errorf("%s: rules %v, want %v of ResourceSlices", set, rules, want)
		}
	}
}
