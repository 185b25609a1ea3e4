package fabric

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

const (
	// name is the label and the container of the test's pods, their PriorityClass in the chart, and the prefix of their
	// names and of their Leases'.
	name = "heddle-fabric-test"
	// runLabel distinguishes the pods of tests.
	runLabel = wellknown.Prefix + "fabric-test"
	// startTimeout bounds the start of pods, with the pull of their image.
	startTimeout = 5 * time.Minute
	poll         = time.Second
	// namespaces is the path of the namespaces of Leases.
	namespaces = "/apis/coordination.k8s.io/v1/namespaces"
)

// Exec implements [measure.Executor].
func (t *test) Exec(ctx context.Context, node string, command []string, out io.Writer) error {
	return t.client.Exec(ctx, t.pods[node], command, out)
}

// lock makes a Lease for each group of the nodes, or returns an error that names the group of another test.
func (t *test) lock(ctx context.Context) error {
	for _, n := range t.nodes {
		if t.leases[n.group] != nil {
			continue
		}
		lease, err := t.acquire(ctx, objectName(n.group))
		if err != nil {
			return fmt.Errorf("group %s: %w", cmp.Or(n.group, "of nodes without a group"), err)
		}
		t.leases[n.group], t.id = lease, string(lease.UID)
	}
	return nil
}

// objectName returns a name for a group, which may have any characters.
func objectName(group string) string {
	text := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(group))
	return strings.Trim(name+"-"+text[:min(len(text), 180)], "-")
}

// acquire makes a Lease. A test that died has it no longer than its duration.
func (t *test) acquire(ctx context.Context, lock string) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: lock, Labels: map[string]string{cluster.AppLabel: name}},
		Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: new(t.seconds())},
	}
	err := t.client.Post().AbsPath(namespaces, t.o.namespace, "leases").Body(lease).Do(ctx).Into(lease)
	if !apierrors.IsAlreadyExists(err) {
		return lease, err
	}
	old, err := cluster.Read[coordinationv1.Lease](ctx,
		t.client.Get().AbsPath(namespaces, t.o.namespace, "leases", lock), "Lease "+lock)
	if err != nil {
		return nil, err
	}
	duration := time.Duration(ptr.Deref(old.Spec.LeaseDurationSeconds, 0)) * time.Second
	if end := old.CreationTimestamp.Add(duration); time.Now().Before(end) {
		return nil, fmt.Errorf("another test runs there until %s at the latest; kubectl -n %s delete lease %s ends it",
			end.UTC().Format(time.RFC3339), t.o.namespace, lock)
	}
	if err := t.release(ctx, lock); err != nil {
		return nil, err
	}
	return t.acquire(ctx, lock)
}

func (t *test) release(ctx context.Context, lock string) error {
	return remove(ctx, t.client.Delete().AbsPath(namespaces, t.o.namespace, "leases", lock))
}

// seconds is the time after which the pods end.
func (t *test) seconds() int32 { return int32((t.o.maxDuration + startTimeout).Seconds()) }

// remove sends a request that deletes an object, which may be gone.
func remove(ctx context.Context, request *rest.Request) error {
	err := request.Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// start makes a pod for each node, and waits until each runs or cannot. Pods that cannot are deleted: their nodes may
// become idle while the others are tested.
func (t *test) start(ctx context.Context) error {
	for _, n := range t.nodes {
		pod := t.pod(n)
		if err := t.client.Post().Namespace(pod.Namespace).Resource("pods").Body(pod).Do(ctx).Into(pod); err != nil {
			return fmt.Errorf("make pod %s: %w", pod.GenerateName, err)
		}
		t.pods[n.name] = pod
	}
	end := time.Now().Add(startTimeout)
	err := wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		return t.look(ctx, time.Now().After(end))
	})
	if err != nil {
		return fmt.Errorf("start pods: %w", err)
	}
	return nil
}

// look reads the state of the pods, deletes those that cannot run, and reports whether all others run.
func (t *test) look(ctx context.Context, late bool) (all bool, err error) {
	list, err := cluster.Read[corev1.PodList](ctx, t.client.Get().Namespace(t.o.namespace).Resource("pods").
		Param("labelSelector", runLabel+"="+t.id), "pods of the test")
	if err != nil {
		return false, err
	}
	all = true
	for node, pod := range t.pods {
		reason, ready := "its pod is gone", false
		if at := slices.IndexFunc(list.Items, func(o corev1.Pod) bool { return o.UID == pod.UID }); at >= 0 {
			t.pods[node] = &list.Items[at]
			reason, ready = state(&list.Items[at], late)
		}
		if reason == "" {
			all = all && ready
			continue
		}
		t.skip(node, reason)
		delete(t.pods, node)
		if err := remove(ctx, t.client.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name)); err != nil {
			return false, fmt.Errorf("delete pod %s: %w", pod.Name, err)
		}
	}
	return all, nil
}

// state reports whether a pod runs, or why it cannot.
func state(pod *corev1.Pod, late bool) (reason string, ready bool) {
	busy := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
	})
	switch {
	case busy:
		reason = "it is not idle"
	case cluster.Ended(pod):
		reason = cmp.Or(pod.Status.Message, "its pod ended")
	case !cluster.IsReady(pod) && late:
		reason = "its pod did not start in " + startTimeout.String()
		for _, s := range pod.Status.ContainerStatuses {
			if w := s.State.Waiting; w != nil && w.Message != "" {
				reason = w.Reason + ": " + w.Message
			}
		}
	}
	return reason, cluster.IsReady(pod)
}

// pod has all extended resources of its node, so that it runs on an idle one alone and gives way to a job.
func (t *test) pod(n *node) *corev1.Pod {
	lease := t.leases[n.group]
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: objectName(n.name) + "-", Namespace: t.o.namespace,
			Labels: map[string]string{cluster.AppLabel: name, runLabel: t.id},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Name: lease.Name, UID: lease.UID,
			}},
		},
		Spec: corev1.PodSpec{
			SchedulerName: t.o.scheduler, PriorityClassName: name, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  new(false),
			TerminationGracePeriodSeconds: new(int64(1)),
			ActiveDeadlineSeconds:         new(int64(t.seconds())),
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{{
						Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{n.name},
					}},
				}}},
			}},
			Volumes: []corev1.Volume{{Name: "shm", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
			}}},
			Containers: []corev1.Container{{
				Name: name, Image: t.o.image, Command: []string{"sleep", "infinity"},
				Resources:    corev1.ResourceRequirements{Limits: n.devices, Requests: n.devices},
				VolumeMounts: []corev1.VolumeMount{{Name: "shm", MountPath: "/dev/shm"}},
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: new(int64(0)), Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"IPC_LOCK"}},
				},
			}},
		},
	}
}

// clean deletes the pods and then the Leases, so that the next test finds the nodes idle.
func (t *test) clean(ctx context.Context) error {
	if len(t.leases) == 0 {
		return nil
	}
	fault := t.client.Delete().Namespace(t.o.namespace).Resource("pods").
		Param("labelSelector", runLabel+"="+t.id).Do(ctx).Error()
	for _, lease := range t.leases {
		fault = cmp.Or(fault, t.release(ctx, lease.Name))
	}
	if fault != nil {
		return fmt.Errorf("clean up: %w", fault)
	}
	return nil
}

// devices returns all GPUs and HCAs of a node, and what else its device plugins offer, and whether pods get shares of
// its GPUs. Of a resource that several containers share, one container gets each HCA once.
func devices(n *corev1.Node) (out corev1.ResourceList, shared bool) {
	out = corev1.ResourceList{}
	for name, count := range n.Status.Allocatable {
		if strings.Contains(string(name), "/") && !strings.Contains(string(name), "kubernetes.io/") && !count.IsZero() {
			out[name] = count
			shared = shared || strings.HasSuffix(string(name), "/sgpu")
		}
	}
	if hcas, err := allocation.ParseHCACounts(n.Annotations[wellknown.HCACounts]); err == nil {
		for name, count := range hcas.HCAs {
			if _, offered := out[corev1.ResourceName(name)]; offered {
				out[corev1.ResourceName(name)] = *resource.NewQuantity(int64(count), resource.DecimalSI)
			}
		}
	}
	return out, shared
}
