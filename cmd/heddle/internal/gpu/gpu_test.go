package gpu

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/clitest"
)

// server is an API server with one Node and, where reports is set, its device
// plugin.
type server struct {
	t       *testing.T
	node    corev1.Node
	reports *report.Report
	// others is how many writes another client makes first.
	others int
	writes []string
	// answers, unless nil, is what the device plugin answers to a release.
	answers *release.Status
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := func(v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			s.t.Error(err)
		}
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/nodes/gpu-1":
		answer(s.node)
	case "PATCH /api/v1/nodes/gpu-1":
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
			s.t.Errorf("%v, %v", err, r.Header)
		}
		if s.others > 0 {
			s.others--
			s.node.ResourceVersion += "0"
			s.fail(w, http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		s.writes = append(s.writes, string(body))
		if s.answers != nil {
			s.answerRelease(body)
		}
		answer(s.node)
	case "GET /api/v1/pods":
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		if s.reports != nil {
			p := corev1.Pod{}
			p.Namespace, p.Name = "heddle-system", "dp-x"
			p.Labels = map[string]string{"app.kubernetes.io/name": "heddle-device-plugin"}
			p.Annotations = map[string]string{"prometheus.io/port": "9999"}
			list.Items = append(list.Items, corev1.Pod{}, p)
		}
		answer(list)
	case "GET /api/v1/namespaces/heddle-system/pods/dp-x/portforward", "POST /api/v1/namespaces/heddle-system/pods/dp-x/portforward":
		clitest.Forward("9999", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != report.Path || json.NewEncoder(w).Encode(s.reports) != nil {
				s.t.Errorf("asked for %s", r.URL.Path)
			}
		}))(w, r)
	default:
		s.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

func (*server) fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason,
		Code: int32(code), Message: string(reason),
	})
}

// run runs the command against the server.
func (s *server) run(args ...string) (string, error) {
	s.t.Helper()
	return clitest.RunOn(s.t, s, NewCommand(), args...)
}

func newServer(t *testing.T, cordoned string, reports *report.Report) *server {
	t.Helper()
	s := &server{t: t, reports: reports}
	s.node.APIVersion, s.node.Kind, s.node.Name, s.node.ResourceVersion = "v1", "Node", "gpu-1", "7"
	if cordoned != "" {
		s.node.Annotations = map[string]string{wellknown.CordonedGPUs: cordoned}
	}
	return s
}

func two() *report.Report {
	return &report.Report{Node: "gpu-1", GPUs: []report.GPU{
		{Index: 0, UUID: "GPU-a", Mode: "native", Wanted: "native"},
		{Index: 1, UUID: "GPU-b", PCI: "0000:3B:00.0", Mode: "native", Wanted: "sgpu", Until: "ml/train ends"},
	}}
}

func TestCordon(t *testing.T) {
	const wrote = `{"metadata":{"annotations":{"heddle.dev/cordoned-gpus":`
	for _, tt := range []struct {
		name     string
		cordoned string
		reports  *report.Report
		others   int
		args     []string
		writes   []string
		out, err string
	}{
		{
			"the first", "", two(), 0,
			[]string{"cordon", "gpu-1", "GPU-b"},
			[]string{wrote + `"GPU-b"},"resourceVersion":"7"}}`},
			"GPU GPU-b of node gpu-1 is cordoned: no new pod gets it, and pods that have it run on.\n", "",
		},
		{
			"another", "GPU-b", two(), 0,
			[]string{"cordon", "gpu-1", "0"},
			[]string{wrote + `"GPU-a,GPU-b"},"resourceVersion":"7"}}`},
			"is cordoned", "",
		},
		{"once more", "GPU-b", two(), 0, []string{"cordon", "gpu-1", "GPU-b"}, nil, "GPU GPU-b of node gpu-1 was cordoned already.\n", ""},
		{
			"another client writes in between", "", two(), 2,
			[]string{"cordon", "gpu-1", "GPU-b"},
			[]string{wrote + `"GPU-b"},"resourceVersion":"700"}}`},
			"is cordoned", "",
		},
		{"another client always does", "", two(), 100, []string{"cordon", "gpu-1", "GPU-b"}, nil, "", "annotate node gpu-1: "},
		{"a GPU that is not there", "", two(), 0, []string{"cordon", "gpu-1", "GPU-c"}, nil, "", `node gpu-1 has no GPU "GPU-c"; it has 0 (GPU-a), 1 (GPU-b)`},
		{
			"what is there is not known", "", nil, 0,
			[]string{"cordon", "gpu-1", "GPU-c"},
			[]string{wrote + `"GPU-c"},"resourceVersion":"7"}}`},
			"is cordoned", "",
		},
		{
			"the device plugin of another node answers", "", &report.Report{Node: "gpu-2"}, 0,
			[]string{"cordon", "gpu-1", "GPU-c"},
			[]string{wrote + `"GPU-c"},"resourceVersion":"7"}}`},
			"is cordoned", "",
		},
		{
			"back", "GPU-a,GPU-b", two(), 0,
			[]string{"uncordon", "gpu-1", "GPU-a"},
			[]string{wrote + `"GPU-b"},"resourceVersion":"7"}}`},
			"GPU GPU-a of node gpu-1 is allocated again.\n", "",
		},
		{
			"the last one back, which was taken out of the machine", "GPU-c", two(), 0,
			[]string{"uncordon", "gpu-1", "GPU-c"},
			[]string{wrote + `null},"resourceVersion":"7"}}`},
			"is allocated again", "",
		},
		{"one that was not cordoned", "", two(), 0, []string{"uncordon", "gpu-1", "GPU-a"}, nil, "was not cordoned", ""},
		{"an invalid annotation", "GPU_a", two(), 0, []string{"cordon", "gpu-1", "GPU-a"}, nil, "", "correct the annotation by hand"},
		{"no such Node", "", two(), 0, []string{"cordon", "gpu-9", "GPU-a"}, nil, "", "read Node gpu-9"},
		{"no UUID", "", two(), 0, []string{"cordon", "gpu-1", "GPU-a,GPU-b"}, nil, "", "has no GPU"},
		{"an unknown verb", "", two(), 0, []string{"drain", "gpu-1", "GPU-a"}, nil, "", `unknown command "drain"`},
		{"an argument too few", "", two(), 0, []string{"cordon", "gpu-1"}, nil, "", "requires at least 2 arg(s), only received 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, tt.cordoned, tt.reports)
			s.others = tt.others
			out, err := s.run(tt.args...)
			if diff := cmp.Diff(tt.writes, s.writes); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			if !strings.Contains(out, tt.out) || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("output %q, error %v", out, err)
			}
		})
	}
}

func TestList(t *testing.T) {
	for _, tt := range []struct {
		name    string
		reports *report.Report
		want    string
	}{
		{"all is known", two(), `NODE   GPU  UUID   PCI           MODE    CORDONED  PENDING
gpu-1  0    GPU-a  -             native  no        -
gpu-1  1    GPU-b  0000:3B:00.0  native  yes       GPU 1: native until ml/train ends, then sgpu
gpu-1  ?    GPU-c  -             -       yes       -
`},
		{"the device plugin does not answer", nil, `The GPUs of node gpu-1 are not known: heddle-device-plugin has no pod on it.

NODE   GPU  UUID   PCI  MODE  CORDONED  PENDING
gpu-1  ?    GPU-b  -    -     yes       -
gpu-1  ?    GPU-c  -    -     yes       -
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := newServer(t, "GPU-c,GPU-b", tt.reports).run("list", "gpu-1")
			if diff := cmp.Diff(tt.want, out); diff != "" || err != nil {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}
