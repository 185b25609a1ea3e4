package gang_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
)

type m = map[string]string

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// show is a spec without what is not set, and the error.
func show(spec gang.Spec, err error) string {
	var text []string
	for v, i := reflect.ValueOf(spec), 0; i < v.NumField(); i++ {
		if !v.Field(i).IsZero() {
			text = append(text, fmt.Sprintf("%s: %v", v.Type().Field(i).Name, v.Field(i)))
		}
	}
	if err != nil {
		text = append(text, err.Error())
	}
	return strings.Join(text, "\n")
}

// TestRead: the file has labels and annotations of a pod in the namespace "default".
func TestRead(t *testing.T) {
	golden.Rows(t, "testdata/pods.txt", *update, func(text string) string {
		pod := &corev1.Pod{}
		if err := json.Unmarshal([]byte(text), &pod.ObjectMeta); err != nil {
			t.Fatal(err)
		}
		pod.Namespace, pod.Name = "default", "p"
		got, err := gang.Read(pod, wellknown.DefaultDomains())
		if mentions := gang.Mentions(pod); !mentions && got.Key.Name != "" {
			t.Errorf("Mentions overlooks %s", text)
		}
		return show(got, err)
	})
}

// TestReadObject: the file has PodGroups.
func TestReadObject(t *testing.T) {
	golden.Rows(t, "testdata/objects.txt", *update, func(text string) string {
		var object map[string]any
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		return show(gang.ReadObject(object, wellknown.DefaultDomains()))
	})
}

func TestMerge(t *testing.T) {
	three, four := gang.Spec{Key: key("a"), MinMember: 3}, gang.Spec{Key: key("a"), MinMember: 4}
	silent := gang.Spec{Key: key("a")}
	base := gang.Spec{Key: key("a"), MinMember: 3, Policy: gang.OnceSatisfied, Timeout: gang.DefaultTimeout}
	sliced := base
	sliced.GroupSize = 64
	object := base
	object.Timeout = 10 * time.Second
	for _, tt := range []struct {
		name    string
		members []gang.Spec
		object  *gang.Spec
		want    gang.Spec
		err     string
	}{
		{"one value holds for all", []gang.Spec{silent, three, silent}, nil, base, ""},
		{"the slice on any member holds for all", []gang.Spec{three, {Key: key("a"), GroupSize: 64}}, nil, sliced, ""},
		{"two slices", []gang.Spec{three, {Key: key("a"), GroupSize: 64}, {Key: key("a"), GroupSize: 8}}, nil, sliced, "gpu-group-size: its members have 64 and 8"},
		{"members disagree, reported once", []gang.Spec{three, four, four, four}, nil, base, "min-available: its members have 3 and 4"},
		{"the object has it", []gang.Spec{silent}, &gang.Spec{Key: key("a"), MinMember: 3, Timeout: 10 * time.Second}, object, ""},
		{"the object contradicts", []gang.Spec{three}, &four, base, "min-available: its members and its PodGroup object have 3 and 4"},
		{"other groups", []gang.Spec{three, {Key: key("a"), Groups: []types.NamespacedName{key("a")}}, {Key: key("a"), Groups: []types.NamespacedName{key("a"), key("b")}}}, nil, func() gang.Spec { s := base; s.Groups = []types.NamespacedName{key("a")}; return s }(), "groups: its members have different values"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := gang.Merge(tt.members, tt.object)
			if (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	pod := func(name string, labels m) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	kubeflow := func(task, index string) m { return m{wellknown.TaskKubeflow: task, wellknown.IndexKubeflow: index} }
	pods := []*corev1.Pod{
		pod("w10", kubeflow("Worker", "10")), pod("w2", kubeflow("worker", "2")), pod("eval", kubeflow("evaluator", "0")),
		pod("ps", kubeflow("ps", "0")), pod("chief", kubeflow("chief", "0")), pod("reader", kubeflow("reader", "0")),
		pod("x-abc12", nil), pod("x-10", nil), pod("x-9", nil), pod("x-+1", nil),
	}
	placement.OrderPods(pods)
	var got []string
	for _, p := range pods {
		got = append(got, p.Name)
	}
	want := []string{"chief", "ps", "reader", "x-9", "x-10", "x-+1", "x-abc12", "w2", "w10", "eval"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("tf", "3", `["default/a"]`, "only-waiting", "64", "10s")
	f.Add("", "1e3", `[""]`, "", "-1", "-5s")
	f.Add("a/b", "99999999999999999999", `[["x"]]`, "once-satisfied", "0x10", "9999999h")
	f.Fuzz(func(t *testing.T, name, least, groups, policy, size, patience string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace:   "default",
			Labels:      m{wellknown.GangName: name, wellknown.GangMinAvailable: least, wellknown.GangMatchPolicy: policy},
			Annotations: m{wellknown.GangGroups: groups, "nvidia.com/gpu-group-size": size, wellknown.KoordinatorWaitingTime: patience},
		}}
		got, err := gang.Read(pod, wellknown.DefaultDomains())
		policies := []gang.Policy{gang.OnceSatisfied, gang.OnlyWaiting, gang.WaitingAndRunning, gang.WaitingRunningSucceed}
		if err != nil {
			if errors.Is(err, gang.ErrNoGang) {
				t.Error("a pod with a gang's name is in none")
			}
			return
		}
		if got.MinMember < 1 || got.MinMember > gang.MaxMembers || got.GroupSize < 1 || got.Timeout <= 0 ||
			!slices.Contains(policies, got.Policy) || len(got.Groups) == 0 || len(got.Groups) > gang.MaxGroups {
			t.Errorf("accepted as %+v", got)
		}
		pod.Labels, pod.Annotations = maps.Clone(pod.Labels), maps.Clone(pod.Annotations)
		again, err := gang.Read(pod, wellknown.DefaultDomains())
		if diff := cmp.Diff(got, again); diff != "" || err != nil {
			t.Errorf("read again: %v\n%s", err, diff)
		}
	})
}

func FuzzReadObject(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"nginx","namespace":"default"},"spec":{"scheduleTimeoutSeconds":10,"minMember":3}}`))
	f.Add([]byte(`{"metadata":[],"spec":7}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var object map[string]any
		if json.Unmarshal(data, &object) != nil {
			return
		}
		got, err := gang.ReadObject(object, wellknown.DefaultDomains())
		if err == nil && (got.Key.Name == "" || got.MinMember < 0 || got.MinMember > gang.MaxMembers || got.Timeout < 0) {
			t.Errorf("accepted as %+v", got)
		}
	})
}
