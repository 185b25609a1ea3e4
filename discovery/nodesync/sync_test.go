package nodesync

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/kube"
)

// server answers as an API server would for one Node; each request takes the
// next of its answers. The real API server is in test/e2e.
type server struct {
	t        *testing.T
	answers  []answer
	requests []string
}

type answer struct {
	code int
	body any
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Errorf("read request: %v", err)
	}
	s.requests = append(s.requests, r.Method+" "+r.Header.Get("Content-Type")+" "+string(body))
	if len(s.answers) == 0 {
		s.t.Errorf("unexpected request: %s", s.requests[len(s.requests)-1])
		http.Error(w, "unexpected", http.StatusTeapot)
		return
	}
	a := s.answers[0]
	s.answers = s.answers[1:]
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.code)
	if err := json.NewEncoder(w).Encode(a.body); err != nil {
		s.t.Errorf("answer: %v", err)
	}
}

func newSyncer(t *testing.T, answers ...answer) (*Syncer, *server) {
	t.Helper()
	s := &server{t: t, answers: answers}
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\n" +
		"clusters: [{name: c, cluster: {server: '" + ts.URL + "'}}]\ncontexts: [{name: x, context: {cluster: c}}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := kube.NewClient(config, "test")
	if err != nil {
		t.Fatal(err)
	}
	return New(client, "n1"), s
}

func node(version string, labels map[string]string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1-uid", ResourceVersion: version, Labels: labels},
	}
}

func TestSyncDropsOnlyTheConflictingLabel(t *testing.T) {
	conflict := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{
			Type:    metav1.CauseTypeFieldManagerConflict,
			Field:   ".metadata.labels.nvidia.com/gpu.product",
			Message: `conflict with "gfd" using v1`,
		}}},
	}
	held := node("2", map[string]string{"nvidia.com/gpu.product": "theirs"})
	held.ManagedFields = []metav1.ManagedFieldsEntry{owns("gfd", metav1.ManagedFieldsOperationUpdate, "nvidia.com/gpu.product")}
	s, api := newSyncer(t, answer{http.StatusConflict, conflict}, answer{http.StatusOK, held}, answer{http.StatusOK, node("3", nil)})
	got, err := s.Sync(t.Context(), node("1", nil), Desired{Labels: map[string]string{
		"nvidia.com/gpu.product": "wanted", "nvidia.com/gpu.count": "8",
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Conflict{{Kind: "label", Key: "nvidia.com/gpu.product", Want: "wanted", Have: "theirs", Manager: "gfd"}}
	if diff := cmp.Diff(want, got.Conflicts); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
	requests := []string{
		`PATCH application/apply-patch+yaml {"apiVersion":"v1","kind":"Node","metadata":{"labels":{"nvidia.com/gpu.count":"8","nvidia.com/gpu.product":"wanted"},"name":"n1"}}`,
		`GET  `,
		`PATCH application/apply-patch+yaml {"apiVersion":"v1","kind":"Node","metadata":{"labels":{"nvidia.com/gpu.count":"8"},"name":"n1"}}`,
	}
	if diff := cmp.Diff(requests, api.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// An API server that goes away in the middle of a race leaves an error.
func TestSyncSurvivesALostRead(t *testing.T) {
	race := metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict}
	s, _ := newSyncer(t, answer{http.StatusConflict, race}, answer{http.StatusForbidden, race}, answer{http.StatusOK, node("2", nil)})
	got, err := s.Sync(t.Context(), node("1", nil), Desired{
		Labels: map[string]string{"a": "1"}, Taints: []corev1.Taint{{Key: "usage", Effect: corev1.TaintEffectNoSchedule}},
	})
	if err == nil || got.Writes != 1 {
		t.Errorf("%d writes, %v", got.Writes, err)
	}
}

func TestSyncWritesTaintsOverTheNewestVersion(t *testing.T) {
	race := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict,
	}
	newer := node("5", nil)
	newer.Spec.Taints = []corev1.Taint{{Key: "foreign", Effect: corev1.TaintEffectNoSchedule}}
	s, api := newSyncer(t, answer{http.StatusConflict, race}, answer{http.StatusOK, newer}, answer{http.StatusOK, node("6", nil)})
	want := Desired{Taints: []corev1.Taint{{Key: "usage", Value: "training", Effect: corev1.TaintEffectNoSchedule}}}
	if _, err := s.Sync(t.Context(), node("1", nil), want); err != nil {
		t.Fatal(err)
	}
	patch := `PATCH application/merge-patch+json {"metadata":{"annotations":{"` + wellknown.OwnedTaints +
		`":"[\"usage:NoSchedule\"]"},"resourceVersion":"`
	requests := []string{
		patch + `1"},"spec":{"taints":[{"key":"usage","value":"training","effect":"NoSchedule"}]}}`,
		`GET  `,
		patch + `5"},"spec":{"taints":[{"key":"foreign","effect":"NoSchedule"},{"key":"usage","value":"training","effect":"NoSchedule"}]}}`,
	}
	if diff := cmp.Diff(requests, api.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestSyncReportsAndStillDoesTheOtherHalf(t *testing.T) {
	forbidden := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Message: "taints are not yours",
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
	}
	s, api := newSyncer(t, answer{http.StatusForbidden, forbidden}, answer{http.StatusOK, node("2", nil)})
	got, err := s.Sync(t.Context(), node("1", nil), Desired{
		Labels: map[string]string{"a": "1"},
		Taints: []corev1.Taint{{Key: "usage", Effect: corev1.TaintEffectNoSchedule}},
	})
	if err == nil || err.Error() != "write taints of node n1: taints are not yours" {
		t.Errorf("error: %v", err)
	}
	if got.Writes != 1 || len(api.requests) != 2 {
		t.Errorf("%d writes in %d requests, want 1 in 2", got.Writes, len(api.requests))
	}
}

func TestSyncIsQuietWhenNothingChanged(t *testing.T) {
	s, api := newSyncer(t)
	n := node("1", map[string]string{"a": "1"})
	n.ManagedFields = []metav1.ManagedFieldsEntry{owns(wellknown.FieldManager, metav1.ManagedFieldsOperationApply, "a")}
	for range 100 {
		if _, err := s.Sync(t.Context(), n, Desired{Labels: map[string]string{"a": "1"}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(api.requests) != 0 {
		t.Errorf("requests: %q", api.requests)
	}
}

func FuzzLabelKeys(f *testing.F) {
	f.Add(`{"f:metadata":{"f:labels":{"f:a":{}}}}`)
	f.Add(`{"f:metadata":{"f:labels":[]}}`)
	f.Fuzz(func(t *testing.T, raw string) {
		for _, key := range labelKeys(metav1.NewFieldsV1(raw)) {
			if len(key) > len(raw) {
				t.Errorf("key %q out of %q", key, raw)
			}
		}
	})
}
