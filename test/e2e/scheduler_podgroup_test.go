//go:build e2e && linux

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podGroups makes the chart's CRD, before a scheduler looks for it.
func podGroups(t *testing.T) {
	t.Helper()
	b := shared(t)
	text := b.helm(t, "template", "x", "deploy/helm/heddle", "-s", "templates/scheduler/podgroups.yaml", "--set", "gpuScheduler.deploy=true")
	if err := b.Apply(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "crd", podGroupCRD, "--ignore-not-found") })
	b.kubectl(t, "wait", "--for=condition=Established", "crd/"+podGroupCRD, "--timeout=3m")
}

// labeledGroup is the field of a PodGroup at the path; "" if there is none.
func (f *fleet) labeledGroup(t *testing.T, name, path string) string {
	t.Helper()
	return f.kubectl(t, "-n", f.namespace, "get", "podgroups.scheduling.x-k8s.io", name, "--ignore-not-found", "-o", "jsonpath="+path)
}

// shows waits until a PodGroup shows this.
func (f *fleet) shows(t *testing.T, name, path, want string) {
	t.Helper()
	eventually(t, func() string {
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
	f.running(t, "job", 3)
	f.running(t, "mine", 2)
	const all = "{.metadata.labels.app\\.kubernetes\\.io/managed-by} {.spec.minMember} {.metadata.ownerReferences[*].uid} " +
		"{.status.phase} {.status.scheduled} {.status.running}"
	f.shows(t, "job", all, fmt.Sprintf("heddle-scheduler 3 %s Running 3 3", operator.UID))
	f.shows(t, "mine", "{.status.phase} {.status.running}", "Running 2")
	t.Log("\n" + f.kubectl(t, "-n", f.namespace, "get", "podgroups.scheduling.x-k8s.io"))

	f.kubectl(t, "-n", f.namespace, "label", "pods", "job-0", "job-1", "job-2", gangLeast+"=2", "--overwrite")
	f.shows(t, "job", "{.spec.minMember}", "2")

	// It is deleted in mid-flight: the gang runs on, and it is made again.
	uid := f.labeledGroup(t, "job", "{.metadata.uid}")
	f.kubectl(t, "-n", f.namespace, "delete", "podgroups.scheduling.x-k8s.io", "job")
	eventually(t, func() string {
		if got := f.labeledGroup(t, "job", "{.metadata.uid}"); got == "" || got == uid {
			return fmt.Sprintf("its uid is %q, and was %q", got, uid)
		}
		return ""
	})
	f.running(t, "job", 3)

	// No pod is left: ours goes, and the user's stays.
	f.kubectl(t, "-n", f.namespace, "delete", "pods", "--all", "--force", "--grace-period=0")
	f.shows(t, "job", "{.metadata.uid}", "")
	if got := f.labeledGroup(t, "mine", uidAndSpec); got != mine {
		t.Errorf("the user's is %s, and was %s:\n%s", got, mine, f.labeledGroup(t, "mine", "{}"))
	}
}
