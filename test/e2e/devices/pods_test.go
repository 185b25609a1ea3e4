//go:build e2e && linux

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const namespace = metav1.NamespaceDefault

// box is a container in short.
type box struct {
	// name defaults to app.
	name       string
	gpus, hcas int
	// more are other resources; a whole cpu makes the container pinnable.
	more corev1.ResourceList
	env  map[string]string
	// envFrom takes the ConfigMap of this name, which need not exist.
	envFrom string
	// args are those of report: none, once, fail.
	args []string
	// sidecar is a restartable init container.
	sidecar bool
}

func quantity(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

func (b box) container() corev1.Container {
	limits := corev1.ResourceList{}
	for name, n := range map[corev1.ResourceName]int{gpuResource: b.gpus, hcaResource: b.hcas} {
		if n > 0 {
			limits[name] = quantity(n)
		}
	}
	maps.Copy(limits, b.more)
	c := corev1.Container{
		Name: defaulted(b.name, "app"), Image: reportImage, Args: b.args,
		Resources: corev1.ResourceRequirements{Limits: limits},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "gpus", MountPath: "/host/gpus"}, {Name: "infiniband", MountPath: "/host/infiniband"},
		},
	}
	for key, value := range b.env {
		c.Env = append(c.Env, corev1.EnvVar{Name: key, Value: value})
	}
	if b.envFrom != "" {
		c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: b.envFrom}, Optional: new(true),
		}}}
	}
	if b.sidecar {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	}
	return c
}

// pod is a pod with one container and init containers. Every container has
// all device nodes of the machine mounted from the host, at /host, so that
// only the device cgroup keeps it from opening what is not its own.
func (r *rig) pod(name string, app box, inits ...box) *corev1.Pod {
	hostPath := func(dir string) corev1.Volume {
		return corev1.Volume{Name: dir, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(r.dir, dir)},
		}}
	}
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(false), EnableServiceLinks: new(false),
			Containers: []corev1.Container{app.container()},
			Volumes:    []corev1.Volume{hostPath("gpus"), hostPath("infiniband")},
		},
	}
	for _, b := range inits {
		p.Spec.InitContainers = append(p.Spec.InitContainers, b.container())
	}
	return p
}

// create creates pods and deletes them after the test.
func (r *rig) create(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		if _, err := r.client.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { r.remove(t, names(pods)...) })
}

func names(pods []*corev1.Pod) []string {
	all := make([]string, len(pods))
	for i, p := range pods {
		all[i] = p.Name
	}
	return all
}

// remove deletes pods and waits until the kubelet is done with them. Pods that
// are gone are fine.
func (r *rig) remove(t *testing.T, pods ...string) {
	t.Helper()
	// Also after the test, whose context has ended by then.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	api := r.client.CoreV1().Pods(namespace)
	for _, name := range pods {
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	for {
		list, err := api.List(ctx, metav1.ListOptions{})
		if err == nil && !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return slices.Contains(pods, p.Name) }) {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Errorf("pods are not gone: %v", errors.Join(err, ctx.Err()))
			return
		}
	}
}

// run creates a pod and waits until it is ready.
func (r *rig) run(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	r.create(t, p)
	return r.waitReady(t, p.Name)
}

// getPod is the pod now; nil if there is none.
func (r *rig) getPod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p, err := r.client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// waitPod waits until ok returns "" for a pod.
func (r *rig) waitPod(t *testing.T, name string, ok func(*corev1.Pod) string) *corev1.Pod {
	t.Helper()
	var p *corev1.Pod
	eventually(t, func() string {
		if p = r.getPod(t, name); p == nil {
			return "there is no pod " + name
		}
		if why := ok(p); why != "" {
			return fmt.Sprintf("pod %s: %s; it is %s", name, why, inShort(p))
		}
		return ""
	})
	return p
}

func (r *rig) waitReady(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return r.waitPod(t, name, func(p *corev1.Pod) string {
		if !ready(p) {
			return "it is not ready"
		}
		return ""
	})
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// inShort is a pod's state in a line.
func inShort(p *corev1.Pod) string {
	words := []string{string(p.Status.Phase), p.Status.Reason, p.Status.Message}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		words = append(words, fmt.Sprintf("%s(%d)", s.Name, s.RestartCount))
		if w := s.State.Waiting; w != nil {
			words = append(words, w.Reason, w.Message)
		}
		if e := s.State.Terminated; e != nil {
			words = append(words, e.Reason, e.Message)
		}
	}
	return strings.Join(words, " ")
}

// status is that of a container, ordinary or init.
func status(p *corev1.Pod, container string) *corev1.ContainerStatus {
	all := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	i := slices.IndexFunc(all, func(s corev1.ContainerStatus) bool { return s.Name == container })
	if i < 0 {
		return &corev1.ContainerStatus{}
	}
	return &all[i]
}

// waitRestart waits until the container app runs again with at least this count.
func (r *rig) waitRestart(t *testing.T, name string, count int32) {
	t.Helper()
	r.waitPod(t, name, func(p *corev1.Pod) string {
		s := status(p, "app")
		if s.RestartCount < count || s.State.Running == nil {
			return fmt.Sprintf("container app has %d restarts and should run with %d", s.RestartCount, count)
		}
		return ""
	})
}

// stopContainer ends a container from within, with status 0. The command that
// does may be killed with the rest of the container.
func (r *rig) stopContainer(t *testing.T, pod, container string) {
	t.Helper()
	_, err := r.Kubectl(t.Context(), "exec", pod, "-c", container, "--", "/report", "stop")
	if err != nil && !strings.Contains(err.Error(), "exit code 137") {
		t.Fatal(err)
	}
}

// killContainer kills a container's processes behind the kubelet's back, which
// may be down. The ID is of a container status: containerd://ID.
func (r *rig) killContainer(t *testing.T, id string) {
	t.Helper()
	_, err := r.NodeExec(t.Context(), "ctr", "tasks", "kill", "-s", "SIGKILL", strings.TrimPrefix(id, "containerd://"))
	if err != nil {
		t.Fatal(err)
	}
}

// static writes a static pod's manifest and takes it away after the test. Its
// mirror in the API server is called NAME-NODE.
func (r *rig) static(t *testing.T, p *corev1.Pod) (mirror string) {
	t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(r.dir, "static", p.Name+".json")
	// Renamed into the directory: the kubelet reads whatever ends up in it.
	if err := os.WriteFile(filepath.Join(r.dir, p.Name+".json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(r.dir, p.Name+".json"), file); err != nil {
		t.Fatal(err)
	}
	mirror = p.Name + "-" + r.Node()
	t.Cleanup(func() {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
		r.remove(t, mirror)
	})
	return mirror
}

// events are messages of Events about an object, by reason, the oldest first.
func (r *rig) events(t *testing.T, object, reason string) []string {
	t.Helper()
	list, err := r.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for i := range list.Items {
		e := &list.Items[i]
		if e.InvolvedObject.Name == object && e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// waitEvent waits for an Event whose message has a text.
func (r *rig) waitEvent(t *testing.T, object, reason, text string) {
	t.Helper()
	eventually(t, func() string {
		messages := r.events(t, object, reason)
		if slices.ContainsFunc(messages, func(m string) bool { return strings.Contains(m, text) }) {
			return ""
		}
		return fmt.Sprintf("no Event %s about %s with %q, only %q", reason, object, text, messages)
	})
}

// waitingFor is why containers of a pod do not run, in the kubelet's words.
func waitingFor(p *corev1.Pod) string {
	var all []string
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Message != "" {
			all = append(all, w.Message)
		}
	}
	return strings.Join(all, "; ")
}
