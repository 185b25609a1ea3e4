//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// podGroups makes the chart's CRD, before a scheduler looks for it.
func podGroups(t *testing.T) {
	t.Helper()
	b := shared
	text := b.helm(t, "template", "x", "deploy/helm/heddle", "-s", "templates/scheduler/podgroups.yaml", "--set", "gpuScheduler.deploy=true")
	if err := b.Apply(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "crd", podGroupCRD, "--ignore-not-found") })
	b.kubectl(t, "wait", "--for=condition=Established", "crd/"+podGroupCRD, "--timeout=30s")
}

// labeledGroup is the field of a PodGroup at the path; "" if there is none.
func (f *fleet) labeledGroup(t *testing.T, name, path string) string {
	t.Helper()
	return f.kubectl(t, "-n", f.namespace, "get", "podgroups.scheduling.x-k8s.io", name, "--ignore-not-found", "-o", "jsonpath="+path)
}

// shows waits until a PodGroup shows this.
func (f *fleet) shows(t *testing.T, within time.Duration, name, path, want string) {
	t.Helper()
	eventually(t, within, func() string {
		if got := f.labeledGroup(t, name, path); got != want {
			return fmt.Sprintf("%s of %s is %q, want %q", path, name, got, want)
		}
		return ""
	})
}

func (f *fleet) userPodGroup(t *testing.T, name string, least int) {
	t.Helper()
	err := f.Apply(t.Context(), fmt.Sprintf(`{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
		"metadata": {"name": %q, "namespace": %q}, "spec": {"minMember": %d}}`, name, f.namespace, least))
	if err != nil {
		t.Fatal(err)
	}
}

// TestPodGroupsOfLabelGangs follows the objects that the scheduler makes for
// gangs which labels describe, beside one that its user made.
func TestPodGroupsOfLabelGangs(t *testing.T) {
	podGroups(t)
	f := newFleet(t)
	f.gpus(t, "podgroups", 8, nil)
	// All pods have one controller: the object is the controller's too.
	operator, err := f.client.CoreV1().ConfigMaps(f.namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "operator"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owner := *metav1.NewControllerRef(operator, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	for i := range 3 {
		p := f.pod(fmt.Sprintf("job-%d", i), 1, map[string]string{gangName: "job", gangLeast: "3"})
		p.Spec.SchedulerName, p.OwnerReferences = schedulerName, []metav1.OwnerReference{owner}
		f.create(t, p)
	}
	f.userPodGroup(t, "mine", 2)
	const uidAndSpec = "{.metadata.uid} {.spec}"
	mine := f.labeledGroup(t, "mine", uidAndSpec)
	f.gang(t, "mine", 2, 1, nil)
	f.running(t, 30*time.Second, "job", 3)
	f.running(t, 30*time.Second, "mine", 2)
	const all = "{.metadata.labels.app\\.kubernetes\\.io/managed-by} {.spec.minMember} {.metadata.ownerReferences[*].uid} " +
		"{.status.phase} {.status.scheduled} {.status.running}"
	f.shows(t, 20*time.Second, "job", all, fmt.Sprintf("heddle-scheduler 3 %s Running 3 3", operator.UID))
	f.shows(t, 20*time.Second, "mine", "{.status.phase} {.status.running}", "Running 2")
	t.Log("\n" + f.kubectl(t, "-n", f.namespace, "get", "podgroups.scheduling.x-k8s.io"))

	f.kubectl(t, "-n", f.namespace, "label", "pods", "job-0", "job-1", "job-2", gangLeast+"=2", "--overwrite")
	f.shows(t, 20*time.Second, "job", "{.spec.minMember}", "2")

	// It is deleted in mid-flight: the gang runs on, and it is made again.
	uid := f.labeledGroup(t, "job", "{.metadata.uid}")
	f.kubectl(t, "-n", f.namespace, "delete", "podgroups.scheduling.x-k8s.io", "job")
	eventually(t, 30*time.Second, func() string {
		if got := f.labeledGroup(t, "job", "{.metadata.uid}"); got == "" || got == uid {
			return fmt.Sprintf("its uid is %q, and was %q", got, uid)
		}
		return ""
	})
	f.running(t, time.Second, "job", 3)

	// No pod is left: ours goes, and the user's stays.
	f.kubectl(t, "-n", f.namespace, "delete", "pods", "--all", "--force", "--grace-period=0")
	f.shows(t, 40*time.Second, "job", "{.metadata.uid}", "")
	if got := f.labeledGroup(t, "mine", uidAndSpec); got != mine {
		t.Errorf("the user's is %s, and was %s:\n%s", got, mine, f.labeledGroup(t, "mine", "{}"))
	}
}

// TestPodGroupOfUserDeletedInMidFlight takes a gang its size while its members
// wait: they hold nothing afterwards, and start when it is there again.
func TestPodGroupOfUserDeletedInMidFlight(t *testing.T) {
	podGroups(t)
	f := newFleet(t)
	f.gpus(t, "midflight", 2, nil)
	f.userPodGroup(t, "big", 3)
	for i := range 3 {
		p := f.pod(fmt.Sprintf("big-%d", i), 1, map[string]string{gangName: "big"})
		p.Spec.SchedulerName = schedulerName
		f.create(t, p)
	}
	t.Log(f.rejected(t, "big", 3, "rejected by podgroup big"))
	f.kubectl(t, "-n", f.namespace, "delete", "podgroups.scheduling.x-k8s.io", "big")
	// There is room now, and it is unknown for how many.
	f.gpus(t, "midflight-more", 2, nil)
	p := f.pod("plain", 2, nil)
	p.Spec.SchedulerName = schedulerName
	f.create(t, p)
	f.running(t, 30*time.Second, "plain", 1)
	for _, p := range f.podsOf(t, "big") {
		if p.Spec.NodeName != "" {
			t.Errorf("%s is on %s", p.Name, p.Spec.NodeName)
		}
	}
	f.userPodGroup(t, "big", 2)
	f.running(t, 30*time.Second, "big", 2)
}

// TestPodGroupOfUserChangedWhileItsPodsAreBound raises minMember above the pods that there are,
// and deletes the object, while a slow scheduler binds: what began together is finished.
func TestPodGroupOfUserChangedWhileItsPodsAreBound(t *testing.T) {
	podGroups(t)
	f := idleFleet(t, shared)
	f.gpus(t, "edited-a", 8, nil)
	f.gpus(t, "edited-b", 8, nil)
	// kubectl has to be faster than eight bindings, on a busy machine too.
	f.replace(t, fast, `"burst":2,"qps":1`)
	f.start(t)
	patch := []string{"-n", f.namespace, "patch", "podgroups.scheduling.x-k8s.io", "edited", "--type=merge", "-p", `{"spec": {"minMember": 20}}`}
	remove := []string{"-n", f.namespace, "delete", "podgroups.scheduling.x-k8s.io", "deleted"}
	for name, change := range map[string][]string{"edited": patch, "deleted": remove} {
		const pods = 8
		f.userPodGroup(t, name, pods)
		for i := range pods {
			p := f.pod(fmt.Sprintf("%s-%d", name, i), 1, map[string]string{gangName: name})
			p.Spec.SchedulerName = schedulerName
			f.create(t, p)
		}
		eventually(t, time.Minute, func() string {
			if len(f.bound(t, name)) == 0 {
				return "none is bound"
			}
			return ""
		})
		f.kubectl(t, change...)
		f.middle(t, name, pods)
		f.running(t, time.Minute, name, pods)
	}
}

// TestSchedulerThatWaitsWritesNothing starts a replica while another one has the
// lease: it knows of the gang, and leaves objects and Events to who leads.
func TestSchedulerThatWaitsWritesNothing(t *testing.T) {
	podGroups(t)
	f := newFleet(t)
	f.kill(t)
	f.held(t, f.client)
	f.start(t)
	p := f.pod("lone-0", 1, map[string]string{gangName: "lone", gangLeast: "2"})
	p.Spec.SchedulerName = schedulerName
	f.create(t, p)
	events := func() string {
		return f.kubectl(t, "-n", f.namespace, "get", "events", "--field-selector=reason=GangIncomplete", "-o", "jsonpath={.items[*].message}")
	}
	// An incomplete gang is reported after 30 s.
	<-time.After(45 * time.Second)
	if got := f.labeledGroup(t, "lone", "{.metadata.uid}") + events(); got != "" {
		t.Errorf("the replica that waits wrote: %s", got)
	}
	f.kubectl(t, "-n", f.namespace, "delete", "lease", schedulerName)
	f.shows(t, 30*time.Second, "lone", "{.status.phase}", "Pending")
	eventually(t, 10*time.Second, func() string {
		if got := events(); !strings.Contains(got, "podgroup lone waits for pods: 1 of 2 exist") {
			return "Events: " + got
		}
		return ""
	})
}

// held gives the lease to another holder, for an hour.
func (f *fleet) held(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	leases := client.CoordinationV1().Leases(f.namespace)
	if err := leases.Delete(t.Context(), schedulerName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	_, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: schedulerName},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("another-holder"), LeaseDurationSeconds: new(int32(3600)),
			AcquireTime: new(metav1.NowMicro()), RenewTime: new(metav1.NowMicro()),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
