package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

// TokenGate admits who the API server says may: a bearer token is reviewed by
// TokenReview, for [Audience] or for the API server, and its user needs "get" on the path as on one of the API
// server's own (nonResourceURLs of a ClusterRole).
type TokenGate struct {
	client rest.Interface
	log    *slog.Logger

	// mu guards answers.
	mu      sync.Mutex
	answers map[question]verdict
}

// Audience is that of tokens for topo-master alone: a ServiceAccount's token with
// this audience is good for nothing else.
const Audience = "heddle-topo-master"

type question [sha256.Size]byte

type verdict struct {
	code  int
	until time.Time
}

const (
	// The time that an answer is believed. A token that is revoked still works
	// for this long.
	believeYes = time.Minute
	believeNo  = 10 * time.Second
	// maxAnswers bounds the memory.
	maxAnswers = 4096
	// reviewTimeout bounds a review.
	reviewTimeout = 5 * time.Second
)

// NewTokenGate asks with a client of any API group.
func NewTokenGate(client rest.Interface, log *slog.Logger) *TokenGate {
	return &TokenGate{client: client, log: log, answers: map[question]verdict{}}
}

// Admit is for Options.Gate.
func (g *TokenGate) Admit(r *http.Request) int {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized
	}
	asked := question(sha256.Sum256([]byte(token + "\x00" + r.URL.Path)))
	if code, known := g.known(asked); known {
		return code
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	code, err := g.review(ctx, token, r.URL.Path)
	if err != nil {
		g.log.WarnContext(ctx, "token cannot be reviewed", "err", err)
		return http.StatusServiceUnavailable
	}
	g.remember(asked, code)
	return code
}

func (g *TokenGate) known(asked question) (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v, ok := g.answers[asked]
	return v.code, ok && time.Now().Before(v.until)
}

func (g *TokenGate) remember(asked question, code int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.answers) >= maxAnswers {
		clear(g.answers)
	}
	life := believeNo
	if code == 0 {
		life = believeYes
	}
	g.answers[asked] = verdict{code, time.Now().Add(life)}
}

func (g *TokenGate) review(ctx context.Context, token, path string) (int, error) {
	user, err := g.user(ctx, token)
	if err != nil {
		return 0, err
	}
	if user == nil {
		return http.StatusUnauthorized, nil
	}
	may := &authzv1.SubjectAccessReview{Spec: authzv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups,
		NonResourceAttributes: &authzv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}
	if len(user.Extra) > 0 {
		may.Spec.Extra = map[string]authzv1.ExtraValue{}
		for key, values := range user.Extra {
			may.Spec.Extra[key] = authzv1.ExtraValue(values)
		}
	}
	if err := g.ask(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", may); err != nil {
		return 0, err
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return 0, nil
}

// user is whose a token is: one for topo-master, or one for the API server. Nil
// is nobody's.
func (g *TokenGate) user(ctx context.Context, token string) (*authnv1.UserInfo, error) {
	for _, audiences := range [][]string{{Audience}, nil} {
		who := &authnv1.TokenReview{Spec: authnv1.TokenReviewSpec{Token: token, Audiences: audiences}}
		if err := g.ask(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", who); err != nil {
			return nil, err
		}
		// Who authenticates without knowing audiences names none.
		if who.Status.Authenticated && (audiences == nil || slices.Contains(who.Status.Audiences, Audience)) {
			return &who.Status.User, nil
		}
	}
	return nil, nil //nolint:nilnil // Nobody is no error.
}

// ask posts a review and reads the answer into it.
func (g *TokenGate) ask(ctx context.Context, path string, review any) error {
	body, err := json.Marshal(review)
	if err != nil {
		return fmt.Errorf("encode a review: %w", err)
	}
	answer, err := g.client.Post().AbsPath(path).SetHeader("Content-Type", "application/json").
		SetHeader("Accept", "application/json").Body(body).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	if err := json.Unmarshal(answer, review); err != nil {
		return fmt.Errorf("read a review: %w", err)
	}
	return nil
}
