//go:build e2e && linux

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestEventsOfTheDevicePlugin: the real API server takes its Events, and rejects
// those that a thief of its token would write.
func TestEventsOfTheDevicePlugin(t *testing.T) {
	b := shared(t)
	const user = "system:serviceaccount:" + suite + ":heddle-device-plugin"
	policy := b.helm(t, "template", "heddle", "deploy/helm/heddle", "-n", suite, "--set", "gpuDevice.deploy=true",
		"-s", "templates/device-plugin/policy-events.yaml")
	if err := b.Apply(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		const name = "heddle-device-plugin-events"
		b.kubectlAfter(t, "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)
		b.kubectlAfter(t, "delete", "clusterrolebinding", name)
		b.kubectlAfter(t, "delete", "clusterrole", name)
	})
	meta := metav1.ObjectMeta{Name: "heddle-device-plugin-events"}
	if _, err := b.client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(b.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: user, Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}},
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(kind, name, component, host string) error {
		_, err := client.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "attempt-", Namespace: "default"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: kind, Name: name, Namespace: map[string]string{"Pod": "default"}[kind]},
			Reason:         "Any", Type: corev1.EventTypeWarning, Source: corev1.EventSource{Component: component, Host: host},
		}, metav1.CreateOptions{})
		return err
	}
	// Before the role counts, everything is forbidden.
	eventually(t, func() string {
		if err := write("Pod", "p", "heddle-device-plugin", "n1"); err != nil {
			return err.Error()
		}
		if err := write("Pod", "p", "heddle-device-plugin", "n2"); !apierrors.IsForbidden(err) {
			return "an Event of another node is not rejected yet"
		}
		return ""
	})
	for _, tt := range []struct {
		kind, name, component, host string
		ok                          bool
	}{
		{"Pod", "p", "heddle-device-plugin", "n1", true},
		{"Node", "n1", "heddle-device-plugin", "n1", true},
		{"Node", "n2", "heddle-device-plugin", "n1", false},
		{"Pod", "p", "kubelet", "n1", false},
		{"Pod", "p", "heddle-device-plugin", "n2", false},
	} {
		if err := write(tt.kind, tt.name, tt.component, tt.host); (err == nil) != tt.ok || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
