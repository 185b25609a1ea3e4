// Package chart tests deploy/helm/heddle, its examples and the commands in the
// documentation, by rendering the chart with the Helm that the project pins.
//
// It needs no cluster: the answer of a real API server to these objects is the
// business of test/e2e.
package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/heddle-dev/heddle/test/golden"
)

const (
	root     = "../.."
	chartDir = root + "/deploy/helm/heddle"
	// The kind of name that helm install --generate-name makes.
	generated = "heddle-1795223568"
	namespace = "heddle-system"
)

var update = flag.Bool("update", false, "write golden files and the table of docs/reference/values.md")

// helmBinary builds the pinned Helm once; the build cache keeps it.
var helmBinary = sync.OnceValues(func() (string, error) {
	cmd := exec.CommandContext(context.Background(), "go", "tool", "-modfile=tools/helm/go.mod", "-n", "helm")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", errors.New(strings.TrimSpace(stderr.String() + " " + err.Error()))
	}
	return strings.TrimSpace(string(out)), nil
})

// helmAnswers are what Helm wrote, by its arguments: tests ask for some a hundred times.
var helmAnswers sync.Map

// helm runs Helm and returns what it wrote, or its complaint as an error. What
// names no registry has its images on the nodes.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	if args[0] != "show" && !strings.Contains(strings.Join(args, " "), "image.repository=") {
		args = append(args, "--set", "localImages=true")
	}
	path, err := helmBinary()
	if err != nil {
		t.Skipf("go tool cannot build Helm here: %v", err)
	}
	if text, ok := helmAnswers.Load(strings.Join(args, "\x00")); ok {
		return text.(string), nil
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home,
		"KUBECONFIG="+filepath.Join(home, "none"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", errors.New(strings.TrimSpace(stderr.String()))
	}
	// A file's name does not give away that it has changed.
	if !slices.Contains(args, "--values") && !slices.Contains(args, "-f") {
		helmAnswers.Store(strings.Join(args, "\x00"), stdout.String())
	}
	return stdout.String(), nil
}

// rendered is the chart's objects, strictly decoded, by "Kind/name".
type rendered map[string]any

// render renders the chart as helm install does and decodes every object as
// the API server does with fieldValidation=Strict.
func render(t *testing.T, args ...string) rendered {
	t.Helper()
	text, err := helm(t, append([]string{"template", generated, chartDir, "-n", namespace}, args...)...)
	if err != nil {
		t.Fatalf("helm template: %v", err)
	}
	return decode(t, text)
}

// renderGolden renders some templates and compares their text with a file of
// testdata, which -update writes.
func renderGolden(t *testing.T, name string, args ...string) rendered {
	t.Helper()
	text, err := helm(t, append([]string{"template", generated, chartDir, "-n", namespace}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, filepath.Join("testdata", name+".yaml"), text, *update)
	return decode(t, text)
}

func decode(t *testing.T, text string) rendered {
	t.Helper()
	objects := rendered{}
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var doc map[string]any
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("not YAML: %v\n%s", err, text)
		}
		if doc == nil {
			continue
		}
		id, object := decodeOne(t, doc)
		if objects[id] != nil {
			t.Errorf("%s is there twice", id)
		}
		objects[id] = object
	}
}

func decodeOne(t *testing.T, doc map[string]any) (id string, object any) {
	t.Helper()
	kind, _ := doc["kind"].(string)
	meta, _ := doc["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	id = kind + "/" + name
	if kind == "" || name == "" {
		t.Fatalf("an object without kind or name: %v", doc)
	}
	switch version, _ := doc["apiVersion"].(string); version + " " + kind {
	case "v1 ConfigMap":
		object = &corev1.ConfigMap{}
	case "v1 Pod":
		object = &corev1.Pod{}
	case "v1 Secret":
		object = &corev1.Secret{}
	case "v1 Service":
		object = &corev1.Service{}
	case "v1 ServiceAccount":
		object = &corev1.ServiceAccount{}
	case "networking.k8s.io/v1 NetworkPolicy":
		object = &networkingv1.NetworkPolicy{}
	case "policy/v1 PodDisruptionBudget":
		object = &policyv1.PodDisruptionBudget{}
	case "apps/v1 DaemonSet":
		object = &appsv1.DaemonSet{}
	case "apps/v1 Deployment":
		object = &appsv1.Deployment{}
	case "batch/v1 Job":
		object = &batchv1.Job{}
	case "batch/v1 CronJob":
		object = &batchv1.CronJob{}
	case "scheduling.k8s.io/v1 PriorityClass":
		object = &schedulingv1.PriorityClass{}
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		object = &rbacv1.ClusterRole{}
	case "resource.k8s.io/v1 DeviceClass":
		object = &resourcev1.DeviceClass{}
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		object = &rbacv1.ClusterRoleBinding{}
	case "rbac.authorization.k8s.io/v1 Role":
		object = &rbacv1.Role{}
	case "rbac.authorization.k8s.io/v1 RoleBinding":
		object = &rbacv1.RoleBinding{}
	case "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":
		object = &admissionv1.ValidatingAdmissionPolicy{}
	case "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding":
		object = &admissionv1.ValidatingAdmissionPolicyBinding{}
	case "admissionregistration.k8s.io/v1 MutatingAdmissionPolicy":
		object = &admissionv1.MutatingAdmissionPolicy{}
	case "admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBinding":
		object = &admissionv1.MutatingAdmissionPolicyBinding{}
	case "v1 ResourceQuota":
		object = &corev1.ResourceQuota{}
	case "apps/v1 StatefulSet":
		object = &appsv1.StatefulSet{}
	case "kubeflow.org/v1 MPIJob", "kubeflow.org/v1 TFJob", "batch.volcano.sh/v1alpha1 Job",
		"scheduling.volcano.sh/v1beta1 Queue", "scheduling.x-k8s.io/v1alpha1 PodGroup",
		"apiextensions.k8s.io/v1 CustomResourceDefinition",
		"monitoring.coreos.com/v1 PodMonitor", "monitoring.coreos.com/v1 ServiceMonitor", "monitoring.coreos.com/v1 PrometheusRule":
		return id, doc // another project's CRD
	default:
		t.Fatalf("no test knows %s %s", version, kind)
	}
	strict(t, id, doc, object)
	return id, object
}

// strict decodes doc, where an unknown field is an error.
func strict(t *testing.T, id string, doc, object any) {
	t.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(object); err != nil {
		t.Errorf("%s: %v", id, err)
	}
}

// get is the object of a type.
func get[T any](t *testing.T, r rendered, id string) T {
	t.Helper()
	object, ok := r[id].(T)
	if !ok {
		t.Fatalf("no %s among %v", id, slices.Sorted(maps.Keys(r)))
	}
	return object
}

func lines(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }
