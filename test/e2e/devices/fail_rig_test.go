//go:build e2e && linux

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// ctx is for clean-ups too, when the test's context has ended.
func (*rig) ctx(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}

// within is eventually for clean-ups.
func (*rig) within(t *testing.T, ok func() string) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		why := ok()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Errorf("after %s: %s", patience, why)
			return
		}
	}
}

// workload is one container with many devices and one with few; the rest of
// the machine is free.
func (r *rig) workload(t *testing.T) []string {
	t.Helper()
	r.create(t, r.pod("big", box{gpus: 4, hcas: 4}), r.pod("small", box{gpus: 1, hcas: 1}))
	r.waitReady(t, "big")
	r.waitReady(t, "small")
	return []string{"big", "small"}
}

// lands proves that the node takes new pods: one gets two GPUs and two HCAs.
func (r *rig) lands(t *testing.T, name string) {
	t.Helper()
	r.run(t, r.pod(name, box{gpus: 2, hcas: 2}))
	r.has(t, name, "app", 2, 2)
}

// life is what must not change while another component fails.
type life struct {
	ID         string
	Restarts   int32
	GPUs, HCAs []string
}

// lives are those of the containers named app, as they are now.
func (r *rig) lives(t *testing.T, pods ...string) map[string]life {
	t.Helper()
	all := map[string]life{}
	for _, name := range pods {
		p := r.getPod(t, name)
		if p == nil {
			t.Errorf("there is no pod %s", name)
			continue
		}
		s, err := interpret(r.ask(t, name, "app"), r.machine(t))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c := status(p, "app")
		all[name] = life{c.ContainerID, c.RestartCount, s.GPUs, s.HCAs}
	}
	return all
}

// untouched fails the test if a container is not what it was.
func (r *rig) untouched(t *testing.T, before map[string]life) {
	t.Helper()
	if diff := cmp.Diff(before, r.lives(t, sortedKeys(before)...)); diff != "" {
		t.Errorf("running containers changed (-before +after):\n%s", diff)
	}
}

// sameDevices fails the test if a container started again has others.
func (r *rig) sameDevices(t *testing.T, before map[string]life) {
	t.Helper()
	after := r.lives(t, sortedKeys(before)...)
	for name, b := range before {
		a := after[name]
		if diff := cmp.Diff([2][]string{b.GPUs, b.HCAs}, [2][]string{a.GPUs, a.HCAs}); diff != "" {
			t.Errorf("%s came back with other devices (-before +after):\n%s", name, diff)
		}
	}
}

// crash kills the container of a pod and returns how often it had started
// again.
func (r *rig) crash(t *testing.T, pod string) (restarts int32) {
	t.Helper()
	s := status(r.getPod(t, pod), "app")
	r.killContainer(t, s.ContainerID)
	return s.RestartCount
}

// stopKubelet stops the kubelet until startKubelet, or until the test ends.
func (r *rig) stopKubelet(t *testing.T) {
	t.Helper()
	if err := r.StopKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.StartKubelet(r.ctx(t)) }) // It mostly runs by then.
}

func (r *rig) startKubelet(t *testing.T) {
	t.Helper()
	if err := r.StartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// registrations counts those in a part of the plugin's log.
func registrations(log string) int { return strings.Count(log, `msg="registered with kubelet"`) }

// waitRegistrations waits until the kubelet has taken this many since mark.
func (r *rig) waitRegistrations(t *testing.T, mark, n int) {
	t.Helper()
	eventually(t, func() string {
		if got := registrations(r.plugin.log.since(mark)); got < n {
			return fmt.Sprintf("%d registrations of %d", got, n)
		}
		return ""
	})
}

// pause is for scenarios that are about time.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// waiting is why a container does not run; empty if it does.
func waiting(p *corev1.Pod) string {
	s := status(p, "app")
	switch w := s.State.Waiting; {
	case w != nil:
		return w.Reason + ": " + w.Message
	case s.State.Running == nil:
		return "not started"
	}
	return ""
}

// waitWaiting waits until the kubelet reports a text of a container that does not
// start, as its state or in an Event.
func (r *rig) waitWaiting(t *testing.T, pod, text string) {
	t.Helper()
	message := ""
	r.waitPod(t, pod, func(p *corev1.Pod) string {
		shown := append(slices.Concat(r.events(t, pod, "Failed"), r.events(t, pod, "FailedCreatePodSandBox")), waiting(p))
		for _, m := range shown {
			if strings.Contains(m, text) {
				message = m
				return ""
			}
		}
		return fmt.Sprintf("no state or Event has %q, only %q", text, shown)
	})
	t.Logf("%s waits: %s", pod, message)
}

// checkpointNames are heddle's CDI devices that the kubelet's checkpoint
// has, by pod UID and container.
func (r *rig) checkpointNames(t *testing.T) map[string]map[string][]string {
	t.Helper()
	var file struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName string
				AllocResp             []byte
			}
		}
	}
	b, err := os.ReadFile(r.NodeDir("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := errors.Join(err, json.Unmarshal(b, &file)); err != nil { //nolint:musttag // The kubelet's format has no tags.
		t.Fatal(err)
	}
	all := map[string]map[string][]string{}
	for _, e := range file.Data.PodDeviceEntries {
		answer := &v1beta1.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, answer); err != nil {
			t.Fatal(err)
		}
		if all[e.PodUID] == nil {
			all[e.PodUID] = map[string][]string{}
		}
		for _, d := range answer.GetCdiDevices() {
			if strings.HasPrefix(d.GetName(), "heddle.dev/") {
				all[e.PodUID][e.ContainerName] = append(all[e.PodUID][e.ContainerName], d.GetName())
			}
		}
	}
	return all
}

// consistent is what holds whatever failed: no CDI name stands for two pods, no
// GPU is open to two, and every running container can open exactly what
// PodResources reports for it and what its checkpoint entries contain.
func (r *rig) consistent(t *testing.T) {
	t.Helper()
	pods, err := r.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names, held, m := r.checkpointNames(t), r.held(t), r.machine(t)
	records := map[string]record{}
	for _, rec := range r.records(t) {
		records["heddle.dev/"+rec.Kind+"="+rec.Device] = rec
	}
	ownerOfName, ownerOfGPU := map[string]string{}, map[string]string{}
	once := func(owners map[string]string, key, pod string) {
		if other, taken := owners[key]; taken {
			t.Errorf("%s and %s both have %s", other, pod, key)
		}
		owners[key] = pod
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil || !ready(p) {
			continue
		}
		var given []record
		for _, name := range slices.Concat(slices.Collect(maps.Values(names[string(p.UID)]))...) {
			once(ownerOfName, name, p.Name)
			given = append(given, records[name])
		}
		s, err := interpret(r.ask(t, p.Name, "app"), m)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		for _, uuid := range s.GPUs {
			once(ownerOfGPU, uuid, p.Name)
		}
		mine := held[key(p.Name, "app")]
		boundGPUs, boundHCAs := bound(m, given)
		if diff := cmp.Diff([2][]string{mine[gpuResource], boundGPUs}, [2][]string{s.GPUs, s.GPUs}); diff != "" {
			t.Errorf("%s: GPUs (-PodResources and records, +can open):\n%s", p.Name, diff)
		}
		if diff := cmp.Diff(boundHCAs, s.HCAs); diff != "" || len(mine[hcaResource]) != len(s.HCAs) {
			t.Errorf("%s: %d HCAs held; (-records +can open):\n%s", p.Name, len(mine[hcaResource]), diff)
		}
	}
}

// onNode runs a shell line on the node.
func (r *rig) onNode(t *testing.T, line string) string {
	t.Helper()
	out, err := r.NodeExec(r.ctx(t), "sh", "-ec", line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return out
}
