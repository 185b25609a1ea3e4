//go:build e2e && linux

package devices

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/heddle-dev/heddle/test/cluster/image"
	"github.com/heddle-dev/heddle/test/install"
)

const loaderImage = "localhost/devices-loader:1"

// TestPreloadFromAnImage: the init containers of the chart bring a library out of an image
// that has nothing else, and containers load it, but for programs that need not. The same library
// again is not written; another one is for containers that start from then on.
func TestPreloadFromAnImage(t *testing.T) {
	r := sgpu(t)
	b, err := builds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r.load(t, image.Spec{
		Name:  install.Registry + "/" + nodeProgram + ":" + install.Tag,
		Files: map[string]string{"/usr/local/bin/heddle-cdi-hook": filepath.Join(b.dir, "heddle-cdi-hook")},
	})
	programs := pastPrograms(t, dir)
	programs["/wait"] = compile(t, filepath.Join(dir, "wait"), wait)
	r.load(t, image.Spec{Name: loaderImage, Entrypoint: []string{"/wait"}, Files: programs})
	content := map[string][]byte{}
	for _, tag := range []string{"one", "two"} {
		file := compile(t, filepath.Join(dir, tag+".so"), fmt.Sprintf(limits, tag), "-shared", "-fPIC", "-D"+tag)
		if content[tag], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
		r.load(t, image.Spec{Name: "localhost/vgpu:" + tag, Data: map[string][]byte{"/libvgpu.so": content[tag]}})
	}
	r.load(t, image.Spec{Name: "localhost/vgpu:none", Data: map[string][]byte{"/other": []byte("x")}})

	library := filepath.Join(r.dir, "library", "libvgpu.so")
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(library)) })
	deliver := func(name, tag string) os.FileInfo {
		t.Helper()
		r.run(t, r.delivery(t, name, "localhost/vgpu:"+tag, filepath.Dir(library)))
		r.remove(t, name)
		got, err := os.ReadFile(library)
		info, statErr := os.Stat(library)
		if err = errors.Join(err, statErr); err != nil || !bytes.Equal(got, content[tag]) {
			t.Fatalf("library %s is not on the node: %d bytes, error %v", tag, len(got), err)
		}
		return info
	}
	first := deliver("first", "one")
	r.configure(t, sharedGPUs+"sgpu: {gpus: [0, 1], enforce: {memory: preload, compute: preload, preload: {library: "+library+"}}}\n")
	r.waitShares(t, 2*16, 200, 2*79)
	r.loads(t, "has-one", "one", nil)
	if again := deliver("again", "one"); !os.SameFile(first, again) || !again.ModTime().Equal(first.ModTime()) {
		t.Error("the same library was written again")
	}
	if second := deliver("second", "two"); os.SameFile(first, second) {
		t.Error("the library was written over, which kills who has it mapped")
	}
	r.loads(t, "has-two", "two", nil)
	r.pastPreload(t)
	if p := r.getPod(t, "has-one"); !ready(p) || status(p, "app").RestartCount != 0 {
		t.Errorf("the pod with the first library is %s", inShort(p))
	}
	copies, _ := filepath.Glob(filepath.Join(r.stateDir(), "preload", "lib", "*.so"))
	for tag, want := range content {
		if !slices.ContainsFunc(copies, func(path string) bool {
			got, err := os.ReadFile(path)
			return err == nil && bytes.Equal(got, want)
		}) {
			t.Errorf("no copy of library %s is left for its container: %v", tag, copies)
		}
	}

	r.create(t, r.delivery(t, "without", "localhost/vgpu:none", filepath.Dir(library)))
	r.waitPod(t, "without", waitStart, func(p *corev1.Pod) string {
		for _, s := range p.Status.InitContainerStatuses {
			for _, end := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
				if end != nil && strings.Contains(end.Message, "copy: in the image: stat /libvgpu.so: no such file or directory") {
					return ""
				}
			}
		}
		return fmt.Sprintf("its init containers are %+v", p.Status.InitContainerStatuses)
	})
	r.remove(t, "without")
	r.count(t)
}

// loads runs a share whose program logs which library it loads.
func (r *rig) loads(t *testing.T, name, want string, env map[string]string) {
	t.Helper()
	p := r.pod(name, box{more: share(30, 4), env: env})
	p.Spec.Containers[0].Image = loaderImage
	r.run(t, p)
	eventually(t, 20*time.Second, func() string {
		text, err := r.client.CoreV1().Pods(namespace).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil || string(text) != "library "+want+"\n" {
			return fmt.Sprintf("%s logs %q, %v; want library %s", name, text, err, want)
		}
		return ""
	})
}

// load packs an image and puts it on the node.
func (r *rig) load(t *testing.T, spec image.Spec) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := errors.Join(image.Pack(archive, spec), r.LoadImage(t.Context(), archive)); err != nil {
		t.Fatal(err)
	}
}

// compile makes a program, or with flags a library, of C.
func compile(t *testing.T, out, source string, flags ...string) string {
	t.Helper()
	return compileBy(t, "gcc", out, source, flags...)
}

func compileBy(t *testing.T, compiler, out, source string, flags ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), compiler, append(flags, "-O1", "-o", out, "-x", "c", "-")...)
	cmd.Stdin = strings.NewReader(source)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", compiler, err, text)
	}
	return out
}

// delivery is a pod with the init containers of the chart's device plugin for an image. They
// write to dir in place of the directory that the chart has.
func (r *rig) delivery(t *testing.T, name, preload, dir string) *corev1.Pod {
	t.Helper()
	installer, err := install.New(t.Context(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := installer.Template(t.Context(), "heddle", "deploy/helm/heddle",
		"--show-only", "templates/device-plugin/daemonset.yaml", "--set", "registry="+install.Registry, "--set", "tag="+install.Tag,
		"--set", "gpuDevice.deploy=true", "--set", "gpuDevice.preload.image="+preload)
	if err != nil {
		t.Fatal(err)
	}
	var daemons appsv1.DaemonSet
	if err := yaml.Unmarshal([]byte(text), &daemons); err != nil {
		t.Fatal(err)
	}
	spec := &daemons.Spec.Template.Spec
	p := r.pod(name, box{})
	p.Spec.InitContainers = spec.InitContainers
	volumes := map[string]corev1.Volume{}
	for _, c := range spec.InitContainers {
		for _, m := range c.VolumeMounts {
			i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
			volumes[m.Name] = spec.Volumes[i]
		}
	}
	for _, v := range slices.Collect(maps.Values(volumes)) {
		if v.HostPath != nil {
			v.HostPath.Path = dir
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
	return p
}
