package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

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
			checkFlags(t, devicePlugin, pod)
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

// TestLibraryOfAnImage: two init containers bring the library of gpuDevice.preload.image to
// the node, where the configuration names it. Neither runs anything of the image nor is
// privileged, and the second one writes to its directory of the node alone.
func TestLibraryOfAnImage(t *testing.T) {
	const image, library = "registry.example.com/gpu/vgpu@sha256:0f", "/var/lib/heddle/device-plugin/library"
	if pod := devicePod(t, renderDevice(t)); pod.InitContainers != nil {
		t.Errorf("without an image there are %v", pod.InitContainers)
	}
	for _, combined := range []string{"false", "true"} {
		objects := renderDevice(t, "--set", "combined="+combined, "--set", "gpuDevice.preload.image="+image,
			"--set", "gpuDevice.preload.path=/opt/libvgpu.so", "--set", "config.cluster.sgpu.slotsPerGPU=4",
			"--set", "gpuDevice.driverAccess=host")
		daemon := "heddle-device-plugin"
		if combined == "true" {
			daemon = "heddle-node"
		}
		pod := get[*appsv1.DaemonSet](t, objects, "DaemonSet/"+daemon).Spec.Template.Spec
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
}
