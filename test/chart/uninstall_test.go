package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// What cleans Nodes and hosts is there only while an uninstall runs, one Job before
// the objects go and one after.
func TestUninstallHooks(t *testing.T) {
	all := render(t, "--set", "uninstall.force=true")
	without := render(t, "--set", "uninstall.clean=false")
	var hooks []string
	for id := range all {
		if without[id] == nil {
			hooks = append(hooks, id)
		}
	}
	slices.Sort(hooks)
	want := []string{
		"ClusterRole/heddle-uninstall", "ClusterRoleBinding/heddle-uninstall", "Job/heddle-uninstall-capacity",
		"Job/heddle-uninstall-nodes", "Role/heddle-uninstall", "RoleBinding/heddle-uninstall",
		"ServiceAccount/heddle-uninstall",
	}
	if diff := cmp.Diff(want, hooks); diff != "" {
		t.Fatalf("objects of uninstall.clean (-want +got):\n%s", diff)
	}
	for event, phase := range map[string]string{"pre-delete": "nodes", "post-delete": "capacity"} {
		job := get[*batchv1.Job](t, all, "Job/heddle-uninstall-"+phase)
		if got := job.Annotations["helm.sh/hook"]; got != event {
			t.Errorf("the Job for %s is a hook of %q, want %q", phase, got, event)
		}
		args := []string{"uninstall", "--phase=" + phase, "--namespace=" + namespace, "--release=" + generated, "--force"}
		if diff := cmp.Diff(args, job.Spec.Template.Spec.Containers[0].Args); diff != "" {
			t.Errorf("arguments (-want +got):\n%s", diff)
		}
	}
	account := all["ServiceAccount/heddle-uninstall"]
	for id, object := range map[string]interface{ GetAnnotations() map[string]string }{
		"ClusterRole": get[*rbacv1.ClusterRole](t, all, "ClusterRole/heddle-uninstall"),
		"Role":        get[*rbacv1.Role](t, all, "Role/heddle-uninstall"),
	} {
		if object.GetAnnotations()["helm.sh/hook"] != "pre-delete,post-delete" || account == nil {
			t.Errorf("%s is not there for the uninstall alone: %v", id, object.GetAnnotations())
		}
	}
}

// An uninstall may stop every daemon that the chart can start.
func TestUninstallMayStopAll(t *testing.T) {
	all := render(t, "--set", everything, "--set", "gpuDevice.mps=true")
	rule := get[*rbacv1.Role](t, all, "Role/heddle-uninstall").Rules[0]
	for id, pod := range pods(all) {
		if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
			continue // It ends by itself.
		}
		if _, name, _ := strings.Cut(id, "/"); !slices.Contains(rule.ResourceNames, name) {
			t.Errorf("%s is not among %v", id, rule.ResourceNames)
		}
	}
}

// Objects of others go with a CRD, so its deletion is asked for, and so is the right to it.
func TestUninstallOfCRDs(t *testing.T) {
	for crds, want := range map[string]bool{"true": true, "false": false} {
		objects := render(t, "--set", "uninstall.crds="+crds)
		role := get[*rbacv1.ClusterRole](t, objects, "ClusterRole/heddle-uninstall")
		may := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, "customresourcedefinitions")
		})
		job := get[*batchv1.Job](t, objects, "Job/heddle-uninstall-nodes")
		asks := slices.Contains(job.Spec.Template.Spec.Containers[0].Args, "--crds")
		if may != want || asks != want {
			t.Errorf("uninstall.crds=%s: asks %t, may %t", crds, asks, may)
		}
	}
	// Values of a release before uninstall had any.
	objects := render(t, "--set-json", "uninstall=null")
	for _, id := range slices.Sorted(maps.Keys(objects)) {
		if strings.Contains(id, "uninstall") {
			t.Errorf("%s without values", id)
		}
	}
}
