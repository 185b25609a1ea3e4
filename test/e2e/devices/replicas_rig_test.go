//go:build e2e && linux

package devices

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// controlled is such a ReplicaSet.
type controlled struct {
	rig  *rig
	name string
}

// replicated is a ReplicaSet with one pod.
func (r *rig) replicated(t *testing.T, name string, b box) controlled {
	t.Helper()
	p := r.pod("", b)
	labels := map[string]string{"app": name}
	p.Labels = labels
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: appsv1.ReplicaSetSpec{
		Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec},
	}}
	if _, err := r.client.AppsV1().ReplicaSets(namespace).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c := controlled{r, name}
	t.Cleanup(func() { c.stop(t) })
	return c
}

// pods are those of the controller that are not on their way out.
func (c controlled) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := c.rig.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + c.name})
	if err != nil {
		t.Fatal(err)
	}
	var all []corev1.Pod
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			all = append(all, list.Items[i])
		}
	}
	return all
}

// waitOnly waits until ok returns "" for the only pod of a controller.
func (r *rig) waitOnly(t *testing.T, c controlled, ok func(*corev1.Pod) string) *corev1.Pod {
	t.Helper()
	var only corev1.Pod
	eventually(t, func() string {
		all := c.pods(t)
		if len(all) != 1 {
			return fmt.Sprintf("%s has %d pods", c.name, len(all))
		}
		only = all[0]
		if why := ok(&only); why != "" {
			return fmt.Sprintf("%s: %s; on %s it is %s", only.Name, why, only.Spec.NodeName, inShort(&only))
		}
		return ""
	})
	return &only
}

// stop removes the controller and its pods; once is enough.
func (c controlled) stop(t *testing.T) {
	t.Helper()
	ctx := c.rig.ctx(t)
	_ = c.rig.client.AppsV1().ReplicaSets(namespace).Delete(ctx, c.name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationForeground), GracePeriodSeconds: new(int64(0)),
	})
	list, err := c.rig.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + c.name})
	if err != nil {
		t.Error(err)
		return
	}
	var all []*corev1.Pod
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	c.rig.remove(t, names(all)...)
}
