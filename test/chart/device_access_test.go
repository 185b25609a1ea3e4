package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// What the container can touch of the host. An addition to this list comes with the reason
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

// What MPS takes: a DaemonSet of its own, and nothing where it is off or no node has a
// driver. The device plugin has no privilege for it.
func TestDevicePrivilegesOfMPS(t *testing.T) {
	const state, shm = "/var/lib/heddle/device-plugin", "/dev/shm/heddle-mps"
	plain := devicePod(t, renderDevice(t)).Containers[0].SecurityContext
	for _, tt := range []struct {
		name, sets string
		add        []corev1.Capability
		mounts     map[string]string
		root       string
	}{
		{
			"in the container", "gpuDevice.mps=true",
			[]corev1.Capability{"KILL", "SETGID", "SETUID"},
			map[string]string{state: state, "/dev/shm": shm},
			"",
		},
		{
			"beside others", "gpuDevice.mps=true,gpuDevice.securityContext.capabilities.add={SETUID,IPC_LOCK}",
			[]corev1.Capability{"IPC_LOCK", "KILL", "SETGID", "SETUID"},
			map[string]string{state: state, "/dev/shm": shm},
			"",
		},
		{"in the driver's root", "gpuDevice.mps=true,gpuDevice.driverAccess=host", nil, map[string]string{
			state: state, "/driver-root" + state: state, "/driver-root/dev/shm": shm, "/driver-root": "/",
		}, "/driver-root"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects := renderDevice(t, "--set", tt.sets)
			set := get[*appsv1.DaemonSet](t, objects, "DaemonSet/heddle-mps").Spec
			if set.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
				t.Errorf("an update of the chart ends the daemons: %s", set.UpdateStrategy.Type)
			}
			pod := set.Template.Spec
			checkFlags(t, "heddle-mps", pod)
			c := pod.Containers[0]
			var add []corev1.Capability
			if c.SecurityContext.Capabilities != nil {
				add = c.SecurityContext.Capabilities.Add
				if diff := cmp.Diff([]corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop); diff != "" {
					t.Errorf("dropped (-want +got):\n%s", diff)
				}
			}
			if diff := cmp.Diff(tt.add, add); diff != "" || !pod.HostPID || *pod.AutomountServiceAccountToken {
				t.Errorf("hostPID %t, capabilities (-want +got):\n%s", pod.HostPID, diff)
			}
			if len(c.Resources.Limits) > 0 {
				t.Errorf("servers of MPS are limited: %v", c.Resources.Limits)
			}
			mounts := map[string]string{}
			for _, m := range c.VolumeMounts {
				for _, v := range pod.Volumes {
					if v.Name == m.Name {
						mounts[m.MountPath] = v.HostPath.Path
					}
				}
			}
			if diff := cmp.Diff(tt.mounts, mounts); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}

			plugin := devicePod(t, objects)
			want := []string{"--mps-keeper=use", "--mps-shm-dir=" + shm}
			if tt.root != "" {
				want = append([]string{"--mps-root=" + tt.root}, want...)
			} else if got := plugin.Containers[0].SecurityContext; tt.name == "in the container" && !cmp.Equal(got, plain) {
				t.Errorf("the plugin's own privileges (-want +got):\n%s", cmp.Diff(plain, got))
			}
			args := slices.DeleteFunc(slices.Clone(plugin.Containers[0].Args),
				func(a string) bool { return !strings.HasPrefix(a, "--mps-") })
			if diff := cmp.Diff(want, args); diff != "" || plugin.HostPID {
				t.Errorf("the plugin's hostPID %t, arguments (-want +got):\n%s", plugin.HostPID, diff)
			}
		})
	}
	for _, sets := range []string{"gpuDevice.mps=false", "gpuDevice.mps=true,gpuDevice.machineConfigMap=dgx"} {
		objects := renderDevice(t, "--set", sets)
		if _, there := objects["DaemonSet/heddle-mps"]; there {
			t.Errorf("heddle-mps with %s", sets)
		}
		for _, arg := range devicePod(t, objects).Containers[0].Args {
			if strings.HasPrefix(arg, "--mps-") {
				t.Errorf("%s with %s", arg, sets)
			}
		}
	}
}

// To measure what containers use takes the host's PIDs, and nothing else; a
// replayed machine has nothing to measure.
func TestDevicePrivilegesOfUsageMetrics(t *testing.T) {
	plain := devicePod(t, renderDevice(t))
	for _, tt := range []struct {
		name, sets string
		pid        bool
	}{
		{"off", "gpuDevice.usageMetrics=false", false},
		{"on", "gpuDevice.usageMetrics=true", true},
		{"a replayed machine", "gpuDevice.usageMetrics=true,gpuDevice.machineConfigMap=dgx", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := devicePod(t, renderDevice(t, "--set", tt.sets))
			if pod.HostPID != tt.pid || pod.HostIPC {
				t.Errorf("hostPID %t, hostIPC %t", pod.HostPID, pod.HostIPC)
			}
			if diff := cmp.Diff(plain.Containers[0].SecurityContext, pod.Containers[0].SecurityContext); diff != "" {
				t.Errorf("security context (-off +on):\n%s", diff)
			}
			if diff := cmp.Diff(hostPaths(plain), hostPaths(pod)); diff != "" && tt.pid {
				t.Errorf("host paths (-off +on):\n%s", diff)
			}
		})
	}
}

// The library to preload and NVIDIA's hook are on the host: they are seen
// through its root, or, where that is not mounted, beside it.
func TestDeviceSeesTheHostsFiles(t *testing.T) {
	const hook, dir = "gpuDevice.cdiHook=/usr/bin/nvidia-cdi-hook", "gpuDevice.preloadDir=/usr/local/vgpu"
	const image, brought = "gpuDevice.preload.image=localhost/vgpu:1", "/var/lib/heddle/device-plugin/library"
	for _, tt := range []struct {
		name, sets, root string
		want             map[string]string
	}{
		{"the whole host", hook + "," + dir, "/driver-root", map[string]string{}},
		{
			"a driver container", "gpuDevice.driverRoot=/run/nvidia/driver," + hook + "," + dir, "/host",
			map[string]string{"/host/usr/bin": "/usr/bin", "/host/usr/local/vgpu": "/usr/local/vgpu"},
		},
		{
			"a hook that is looked for", "gpuDevice.driverRoot=/run/nvidia/driver,gpuDevice.cdiHook=auto," + dir, "/host",
			map[string]string{"/host/usr": "/usr", "/host/usr/local/vgpu": "/usr/local/vgpu"},
		},
		{"a hook that is looked for on the whole host", "gpuDevice.cdiHook=auto", "/driver-root", map[string]string{}},
		{
			"both in one", "gpuDevice.driverRoot=/run/nvidia/driver," + hook + ",gpuDevice.preloadDir=/usr/bin", "/host",
			map[string]string{"/host/usr/bin": "/usr/bin"},
		},
		{
			"a library of an image, and a driver container", "gpuDevice.driverRoot=/run/nvidia/driver," + image, "/host",
			map[string]string{"/host" + brought: brought},
		},
		{"a library of an image", image, "/driver-root", map[string]string{}},
		{"neither", "gpuDevice.driverRoot=/run/nvidia/driver", "/host", map[string]string{}},
		{
			"a replayed machine", "gpuDevice.machineConfigMap=dgx," + dir, "/host",
			map[string]string{"/host/usr/local/vgpu": "/usr/local/vgpu"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := devicePod(t, renderDevice(t, "--set", tt.sets))
			got := map[string]string{}
			for _, m := range pod.Containers[0].VolumeMounts {
				for _, v := range pod.Volumes {
					if v.Name == m.Name && strings.HasPrefix(m.MountPath, "/host/") {
						got[m.MountPath] = v.HostPath.Path
						if !m.ReadOnly {
							t.Errorf("%s is writable", m.MountPath)
						}
					}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			if !slices.Contains(pod.Containers[0].Args, "--host-root="+tt.root) {
				t.Errorf("arguments %v, want the host at %s", pod.Containers[0].Args, tt.root)
			}
		})
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

// TestLibraryOfAnImage: two init containers bring the library of gpuDevice.preload.image to
// the node, where the configuration names it. Neither runs anything of the image nor is
// privileged, and the second one writes to its directory of the node alone.
func TestLibraryOfAnImage(t *testing.T) {
	const image, library = "registry.example.com/gpu/vgpu@sha256:0f", "/var/lib/heddle/device-plugin/library"
	if pod := devicePod(t, renderDevice(t)); pod.InitContainers != nil {
		t.Errorf("without an image there are %v", pod.InitContainers)
	}
	objects := renderDevice(t, "--set", "gpuDevice.preload.image="+image,
		"--set", "gpuDevice.preload.path=/opt/libvgpu.so", "--set", "config.cluster.sgpu.slotsPerGPU=4",
		"--set", "gpuDevice.driverAccess=host")
	pod := devicePod(t, objects)
	if len(pod.InitContainers) != 2 {
		t.Fatalf("init containers %v", pod.InitContainers)
	}
	program, bring := pod.InitContainers[0], pod.InitContainers[1]
	if program.Image != pod.Containers[0].Image || bring.Image != image {
		t.Errorf("images %s and %s", program.Image, bring.Image)
	}
	const hook = "/heddle-cdi-hook"
	commands := [][]string{
		{"/usr/local/bin" + hook, "copy", "/usr/local/bin" + hook, "/copy" + hook},
		{"/copy" + hook, "copy", "/opt/libvgpu.so", "/library/libvgpu.so"},
	}
	if diff := cmp.Diff(commands, [][]string{program.Command, bring.Command}); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	for _, c := range pod.InitContainers {
		s := c.SecurityContext
		if s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
			!cmp.Equal(s.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}) {
			t.Errorf("%s has %+v", c.Name, s)
		}
		if !slices.Contains(c.Env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"}) {
			t.Errorf("%s has %v", c.Name, c.Env)
		}
	}
	only := pod
	only.Containers = []corev1.Container{bring}
	if diff := cmp.Diff(map[string]string{library: "rw"}, hostPaths(only)); diff != "" {
		t.Errorf("host paths (-want +got):\n%s", diff)
	}
	config := get[*corev1.ConfigMap](t, objects, "ConfigMap/heddle-device-config").Data["cluster-config"]
	for _, want := range []string{"library: " + library + "/libvgpu.so", "slotsPerGPU: 4"} {
		if !strings.Contains(config, want) {
			t.Errorf("the configuration lacks %q:\n%s", want, config)
		}
	}
}
