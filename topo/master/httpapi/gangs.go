package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/topo/gang"
)

// gangs is GET /v1/gangs: all of them, or with namespace= and state= those that
// match.
func (s *Server) gangs(w http.ResponseWriter, r *http.Request) {
	v := s.current(w)
	if v == nil {
		return
	}
	q := r.URL.Query()
	namespace, state := q.Get("namespace"), gang.Phase(q.Get("state"))
	if state != "" && !slices.Contains(gang.Phases(), state) {
		words := make([]string, 0, len(gang.Phases()))
		for _, p := range gang.Phases() {
			words = append(words, string(p))
		}
		http.Error(w, "the states are "+strings.Join(words, ", "), http.StatusBadRequest)
		return
	}
	if namespace != "" || state != "" {
		s.encode(w, r, v.SelectGangs(namespace, state))
		return
	}
	d, err := v.GangDocument()
	s.document(w, r, v, d, err)
}
