//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/cluster"
)

// explain logs what the reader of a failed scene wants to see.
func (s *smoke) explain(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp", "-o", "custom-columns=O:.involvedObject.name,R:.reason,M:.message"},
		{"-n", suite, "logs", "ds/" + s.plugin, "--tail=40"},
		{"-n", suite, "logs", "deploy/" + schedulerName, "--tail=40"},
	} {
		out, err := s.Kubectl(ctx, args...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// run creates a pod on the real node and waits until it is ready.
func (s *smoke) run(t *testing.T, name, limits string) {
	t.Helper()
	s.applied(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: default}, spec: {
		terminationGracePeriodSeconds: 0, tolerations: [{operator: Exists}], nodeSelector: {kubernetes.io/hostname: %s},
		containers: [{name: main, image: %q, command: [sleep, infinity], resources: {limits: {%s}}}]}}`,
		name, s.Node(), cluster.BusyboxImage, limits))
	s.kubectl(t, "wait", "pod/"+name, "--for=condition=Ready", "--timeout="+patience.String())
}

// opened are the GPUs that a container can open: those that the device cgroup admits answer
// ENXIO, as no driver is behind them. The GPUs have the minors from 1 on.
func (s *smoke) opened(t *testing.T, pod string) (minors []string) {
	t.Helper()
	out := s.kubectl(t, "exec", pod, "--", "sh", "-c",
		`for i in 1 2 3 4 5 6 7 8; do mknod /tmp/$i c 240 $i; echo $i $(head -c1 /tmp/$i 2>&1); rm /tmp/$i; done`)
	for line := range strings.Lines(out) {
		minor, answer, _ := strings.Cut(line, " ")
		switch {
		case strings.Contains(answer, "No such device or address"):
			minors = append(minors, minor)
		case !strings.Contains(answer, "Operation not permitted"):
			t.Errorf("%s: opening minor %s: %s", pod, minor, answer)
		}
	}
	return minors
}

// env is the value of an environment variable, split at commas.
func (s *smoke) env(t *testing.T, pod, name string) []string {
	t.Helper()
	value := strings.TrimSpace(s.kubectl(t, "exec", pod, "--", "sh", "-c", "echo $"+name))
	if value == "" {
		return nil
	}
	return strings.Split(value, ",")
}

// exclusive checks that a pod has one GPU, which none of the others has.
func (s *smoke) exclusive(t *testing.T, pod string, others ...string) {
	t.Helper()
	minors, uuids := s.opened(t, pod), s.env(t, pod, "HEDDLE_GPUS")
	if len(minors) != 1 || len(uuids) != 1 {
		t.Fatalf("%s opens minors %v and has HEDDLE_GPUS %v, want one GPU", pod, minors, uuids)
	}
	for _, other := range others {
		if slices.Contains(s.env(t, other, "HEDDLE_GPUS"), uuids[0]) {
			t.Errorf("%s and %s both have %s", pod, other, uuids[0])
		}
	}
}

func (s *smoke) waitAllocatable(t *testing.T, resource corev1.ResourceName, want int64) {
	t.Helper()
	eventually(t, func() string {
		if got := s.bed.node(t, s.Node()).Status.Allocatable[resource]; got.Value() != want {
			return fmt.Sprintf("allocatable %s is %s, want %d", resource, got.String(), want)
		}
		return ""
	})
}

// lives are the containers of the pods that run throughout: a restart must not touch them.
func (s *smoke) lives(t *testing.T) string {
	t.Helper()
	return s.kubectl(t, "get", "pods", "gpu-1", "share-1", "share-2", "-o",
		`jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
}

// survives checks that a restart left running pods alone, and that the next pod gets a GPU
// which is free.
func (s *smoke) survives(t *testing.T, next string, restart func()) {
	t.Helper()
	before, gpu := s.lives(t), s.opened(t, "gpu-1")
	restart()
	s.waitAllocatable(t, smokeGPU, 7)
	s.run(t, next, smokeGPU+": 1")
	s.exclusive(t, next, "gpu-1", "share-1")
	if diff := cmp.Diff(before, s.lives(t)); diff != "" {
		t.Errorf("containers (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(gpu, s.opened(t, "gpu-1")); diff != "" {
		t.Errorf("the GPU of a running pod (-before +after):\n%s", diff)
	}
}

// gang runs a gang that needs a whole leaf of four nodes, and checks that it has one.
func (s *smoke) gang(t *testing.T, name, class string) {
	t.Helper()
	const n = 4
	for i := range n {
		p := s.fleet.member(name, i, n, 8, map[string]string{inOneLeaf: "leaf"})
		p.Spec.SchedulerName, p.Spec.PriorityClassName = "", class
		s.fleet.create(t, p)
	}
	nodes := s.fleet.running(t, name, n)
	for node := range nodes {
		if s.at[node] != leafA {
			t.Errorf("the gang is on %v", nodes)
		}
	}
}
