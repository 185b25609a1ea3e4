package httpserve

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
)

// Auth authenticates bearer tokens with a TokenReview, for the audience or for the API
// server, and authorizes their users with a SubjectAccessReview of "get" on the path
// (nonResourceURLs of a ClusterRole).
type Auth struct {
	audience string
	tokens   authentication.TokenReviewInterface
	access   authorization.SubjectAccessReviewInterface
	// codes are the last answers by token and path.
	codes *cache.LRUExpireCache
	// reviews has a place for each request that waits for a review: it has a connection of the server.
	reviews chan struct{}
	warn    rate.Sometimes
	log     *slog.Logger
}

const (
	// How long an answer is reused. A token that is revoked still works for
	// this long.
	admittedTTL = time.Minute
	rejectedTTL = 10 * time.Second
	// maxCodes bounds the memory.
	maxCodes = 4096
	// reviewTimeout bounds the reviews of a request.
	reviewTimeout = 5 * time.Second
	maxReviews    = 16
)

// NewAuth reviews tokens with the API server of a config. The audience is that of tokens for this server only: a
// ServiceAccount's token with this audience is valid for nothing else.
func NewAuth(config *rest.Config, audience string, log *slog.Logger) (*Auth, error) {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	tokens, err := authentication.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for token reviews: %w", err)
	}
	access, err := authorization.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for access reviews: %w", err)
	}
	return &Auth{
		audience: audience, tokens: tokens.TokenReviews(), access: access.SubjectAccessReviews(),
		codes: cache.NewLRUExpireCache(maxCodes), reviews: make(chan struct{}, maxReviews),
		warn: rate.Sometimes{Interval: warnEvery}, log: log,
	}, nil
}

// Admit returns 0, or the HTTP status to reject a request with: 401 without a token that the
// API server knows, 403 if its user may not have the path, 503 if that is not known.
func (a *Auth) Admit(r *http.Request) int {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized
	}
	key := sha256.Sum256([]byte(token + "\x00" + r.URL.Path))
	if known, ok := a.codes.Get(key); ok {
		code, _ := known.(int)
		return code
	}
	select {
	case a.reviews <- struct{}{}:
		defer func() { <-a.reviews }()
	default:
		return http.StatusServiceUnavailable
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	code, err := a.review(ctx, token, r.URL.Path)
	if err != nil {
		// Anyone can send tokens.
		a.warn.Do(func() { a.log.WarnContext(ctx, "token cannot be reviewed", "err", err) })
		return http.StatusServiceUnavailable
	}
	ttl := rejectedTTL
	if code == 0 {
		ttl = admittedTTL
	}
	a.codes.Add(key, code, ttl)
	return code
}

func (a *Auth) review(ctx context.Context, token, path string) (int, error) {
	user, err := a.user(ctx, token)
	if err != nil {
		return 0, err
	}
	if user == nil {
		return http.StatusUnauthorized, nil
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}
	for key, values := range user.Extra {
		review.Spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err = a.access.Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("review access: %w", err)
	}
	if !review.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return 0, nil
}

// user returns a token's user: a token for this server, or one for the API server. It is nil
// if the token is neither.
func (a *Auth) user(ctx context.Context, token string) (*authenticationv1.UserInfo, error) {
	for _, audiences := range [][]string{{a.audience}, nil} {
		review, err := a.tokens.Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("review token: %w", err)
		}
		// An authenticator that does not know audiences returns none.
		if review.Status.Authenticated && (audiences == nil || slices.Contains(review.Status.Audiences, a.audience)) {
			return &review.Status.User, nil
		}
	}
	return nil, nil //nolint:nilnil // A token without a user is not an error.
}
