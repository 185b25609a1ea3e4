package gang_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
)

type m = map[string]string

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

func TestRead(t *testing.T) {
	const family, koordinator = "pod-group.scheduling.sigs.k8s.io", "gang.scheduling.koordinator.sh"
	two := []types.NamespacedName{key("gang-example1"), key("gang-example2")}
	for _, tt := range []struct {
		name                string
		labels, annotations m
		want                gang.Spec
		err                 string
	}{
		{name: "labels of the documented example", labels: m{family + "/name": "tf-smoke-gpu", family + "/min-available": "3"}, want: gang.Spec{Key: key("tf-smoke-gpu"), MinMember: 3}},
		{name: "a PodGroup's name", labels: m{family + "/name": "nginx"}, want: gang.Spec{Key: key("nginx")}},
		{name: "the bare key", labels: m{family: "nginx"}, want: gang.Spec{Key: key("nginx")}},
		{name: "the key of the x API group", labels: m{"scheduling.x-k8s.io/pod-group": "nginx"}, want: gang.Spec{Key: key("nginx")}},
		{name: "Koordinator", annotations: m{koordinator + "/name": "gang-example", koordinator + "/min-available": "2"}, want: gang.Spec{Key: key("gang-example"), MinMember: 2}},
		{name: "both spellings alike", labels: m{family + "/name": "a"}, annotations: m{koordinator + "/name": "a"}, want: gang.Spec{Key: key("a")}},
		{name: "a Job's pods", labels: m{"batch.kubernetes.io/job-name": "train"}, annotations: m{wellknown.Gang: "8"}, want: gang.Spec{Key: key("train"), MinMember: 8}},
		{
			name: "a JobSet's pods", labels: m{"jobset.sigs.k8s.io/jobset-name": "train", "batch.kubernetes.io/job-name": "train-workers-0"},
			annotations: m{wellknown.Gang: "8"}, want: gang.Spec{Key: key("train"), MinMember: 8},
		},
		{
			name: "a group of a LeaderWorkerSet", labels: m{"leaderworkerset.sigs.k8s.io/name": "serve", "leaderworkerset.sigs.k8s.io/group-index": "1"},
			annotations: m{wellknown.Gang: "true", "leaderworkerset.sigs.k8s.io/size": "4"}, want: gang.Spec{Key: key("serve-1"), MinMember: 4},
		},
		{
			name: "the gang's own name counts before its controller's", labels: m{family + "/name": "a", "batch.kubernetes.io/job-name": "train"},
			annotations: m{wellknown.Gang: "8"}, want: gang.Spec{Key: key("a"), MinMember: 8},
		},
		{name: "a gang without a controller", annotations: m{wellknown.Gang: "8"}, want: gang.Spec{Key: key(""), MinMember: 8}, err: "annotation heddle.dev/gang: no label of the pod names its Job, JobSet, LeaderWorkerSet, Kubeflow job or Ray cluster"},
		{
			name: "a Job does not know its size", labels: m{"batch.kubernetes.io/job-name": "train"}, annotations: m{wellknown.Gang: "true"},
			want: gang.Spec{Key: key("train")}, err: `annotation heddle.dev/gang: "true" is for the pods of LeaderWorkerSets, which contain their number; write the number of members`,
		},
		{
			name: "two sizes", labels: m{"batch.kubernetes.io/job-name": "train", family + "/min-available": "4"}, annotations: m{wellknown.Gang: "8"},
			want: gang.Spec{Key: key("train"), MinMember: 4}, err: `label pod-group.scheduling.sigs.k8s.io/min-available is "4" and annotation heddle.dev/gang is "8"`,
		},
		{name: "match-policy", labels: m{family + "/name": "a", family + "/match-policy": "waiting-and-running"}, want: gang.Spec{Key: key("a"), Policy: gang.WaitingAndRunning}},
		{
			name: "groups", labels: m{family + "/name": "gang-example1"},
			annotations: m{family + "/groups": `["default/gang-example1", "default/gang-example2"]`},
			want:        gang.Spec{Key: key("gang-example1"), Groups: two},
		},
		{
			name: "Koordinator's groups; itself is added, a bare name is of its namespace", labels: m{family + "/name": "gang-example1"},
			annotations: m{koordinator + "/groups": `["gang-example2","default/gang-example2"]`},
			want:        gang.Spec{Key: key("gang-example1"), Groups: two},
		},
		{
			name: "slices, levels, patience, the map", labels: m{family + "/name": "a"},
			annotations: m{"nvidia.com/gpu-group-size": "64", wellknown.GangRequiredLevel: "leaf", wellknown.GangPreferredLevel: "nvlink", koordinator + "/waiting-time": "30s", wellknown.GangWithoutMap: "wait"},
			want:        gang.Spec{Key: key("a"), GroupSize: 64, Required: "leaf", Preferred: "nvlink", Timeout: 30 * time.Second, WithoutMap: gang.Wait},
		},
		{name: "the alias of the slice", labels: m{family + "/name": "a"}, annotations: m{"metax-tech.com/gpu-group-size": "8"}, want: gang.Spec{Key: key("a"), GroupSize: 8}},
		{
			name:        "Koordinator's total-number and mode are ignored with a word",
			annotations: m{koordinator + "/name": "a", koordinator + "/total-number": "9", koordinator + "/mode": "NonStrict"},
			want: gang.Spec{Key: key("a"), Ignored: []string{
				"annotation gang.scheduling.koordinator.sh/total-number is ignored", "annotation gang.scheduling.koordinator.sh/mode is ignored",
			}},
		},
		{
			name:        "Koordinator's gangs are once-satisfied",
			annotations: m{koordinator + "/name": "a", koordinator + "/match-policy": "only-waiting"},
			want: gang.Spec{Key: key("a"), Policy: gang.OnceSatisfied, Ignored: []string{
				"annotation gang.scheduling.koordinator.sh/match-policy: only-waiting is ignored: a gang that gang.scheduling.koordinator.sh/name names is once-satisfied",
			}},
		},
		{name: "in no gang", labels: m{"app": "x"}, annotations: m{"nvidia.com/gpu-group-size": "64"}, err: "is in no gang"},
		{name: "min-available without a name", labels: m{family + "/min-available": "3"}, err: "label pod-group.scheduling.sigs.k8s.io/min-available without the name of a gang"},
		{name: "two names", labels: m{family + "/name": "a", family: "b"}, want: gang.Spec{Key: key("a")}, err: `label pod-group.scheduling.sigs.k8s.io/name is "a" and label pod-group.scheduling.sigs.k8s.io is "b"`},
		{name: "an empty name", labels: m{family + "/name": ""}, want: gang.Spec{Key: key("")}, err: "is empty"},
		{name: "a name of no object", annotations: m{koordinator + "/name": "../etc"}, want: gang.Spec{Key: key("")}, err: `invalid name "../etc"`},
		{name: "min-available is a word", labels: m{family + "/name": "a", family + "/min-available": "three"}, want: gang.Spec{Key: key("a")}, err: `min-available: "three" is not 1 to 100000`},
		{name: "two values of min-available", labels: m{family + "/name": "a", family + "/min-available": "3"}, annotations: m{koordinator + "/min-available": "2"}, want: gang.Spec{Key: key("a"), MinMember: 3}, err: `"3" and annotation gang.scheduling.koordinator.sh/min-available is "2"`},
		{name: "unknown match-policy", labels: m{family + "/name": "a", family + "/match-policy": "sometimes"}, want: gang.Spec{Key: key("a")}, err: `unsupported value "sometimes": supported are once-satisfied`},
		{name: "groups as a label", labels: m{family + "/name": "a", family + "/groups": "a.b"}, want: gang.Spec{Key: key("a")}, err: "must be an annotation"},
		{name: "groups that are no JSON", labels: m{family + "/name": "a"}, annotations: m{family + "/groups": "a,b"}, want: gang.Spec{Key: key("a")}, err: `invalid list "a,b"`},
		{name: "groups of no names", labels: m{family + "/name": "a"}, annotations: m{family + "/groups": `["default/b/c"]`}, want: gang.Spec{Key: key("a")}, err: `invalid gang "default/b/c": must be namespace/name`},
		{name: "two values of the slice", labels: m{family + "/name": "a"}, annotations: m{"nvidia.com/gpu-group-size": "64", "metax-tech.com/gpu-group-size": "8"}, want: gang.Spec{Key: key("a"), GroupSize: 64}, err: "gpu-group-size"},
		{name: "a slice of no number", labels: m{family + "/name": "a"}, annotations: m{"nvidia.com/gpu-group-size": "-8"}, want: gang.Spec{Key: key("a")}, err: `"-8" is not 1 to`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Labels: tt.labels, Annotations: tt.annotations}}
			got, err := gang.Read(pod, wellknown.DefaultDomains())
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if mentions := gang.Mentions(pod); !mentions && got.Key.Name != "" {
				t.Error("Mentions overlooks it")
			}
		})
	}
}

func TestReadObject(t *testing.T) {
	for _, tt := range []struct {
		name, object string
		want         gang.Spec
		err          string
	}{
		{"the documented one", `{"metadata":{"name":"nginx","namespace":"default"},"spec":{"scheduleTimeoutSeconds":10,"minMember":3}}`, gang.Spec{Key: key("nginx"), MinMember: 3, Timeout: 10 * time.Second}, ""},
		{"annotations", `{"metadata":{"name":"a","namespace":"default","annotations":{"gang.scheduling.koordinator.sh/groups":"[\"b\"]"}},"spec":{"minMember":1}}`, gang.Spec{Key: key("a"), MinMember: 1, Groups: []types.NamespacedName{key("a"), key("b")}}, ""},
		{"nothing but a name", `{"metadata":{"name":"a","namespace":"default"}}`, gang.Spec{Key: key("a")}, ""},
		{"no name", `{"spec":{"minMember":3}}`, gang.Spec{}, "no name"},
		{"no number", `{"metadata":{"name":"a","namespace":"default"},"spec":{"minMember":"3"}}`, gang.Spec{Key: key("a")}, "PodGroup default/a: spec.minMember: 3 is not 1 to"},
		{"a fraction", `{"metadata":{"name":"a","namespace":"default"},"spec":{"minMember":2.5,"scheduleTimeoutSeconds":-1}}`, gang.Spec{Key: key("a")}, "spec.scheduleTimeoutSeconds: -1"},
		{"min-available contradicts", `{"metadata":{"name":"a","namespace":"default","annotations":{"gang.scheduling.koordinator.sh/min-available":"2"}},"spec":{"minMember":3}}`, gang.Spec{Key: key("a"), MinMember: 3}, "spec.minMember is 3 and its min-available 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var object map[string]any
			if err := json.Unmarshal([]byte(tt.object), &object); err != nil {
				t.Fatal(err)
			}
			got, err := gang.ReadObject(object, wellknown.DefaultDomains())
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
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
