package httpapi

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
)

// TokenAuth authenticates bearer tokens with a TokenReview, for [Audience] or
// for the API server, and authorizes their users with a SubjectAccessReview of
// "get" on the path (nonResourceURLs of a ClusterRole).
type TokenAuth struct {
	// tokens and access are clients for the two APIs of reviews, and nothing else: the
	// typed ones register every API of Kubernetes.
	tokens, access rest.Interface
	log            *slog.Logger
	// codes are the last answers by token and path.
	codes *cache.LRUExpireCache
}

// Audience is that of tokens for topo-master alone: a ServiceAccount's token with
// this audience is valid for nothing else.
const Audience = "heddle-topo-master"

const (
	// How long an answer is reused. A token that is revoked still works for
	// this long.
	admittedTTL = time.Minute
	rejectedTTL = 10 * time.Second
	// maxCodes bounds the memory.
	maxCodes = 4096
	// reviewTimeout bounds the reviews of a request.
	reviewTimeout = 5 * time.Second
)

// NewTokenAuth reviews tokens with the API server of a config.
func NewTokenAuth(config *rest.Config, log *slog.Logger) (*TokenAuth, error) {
	tokens, err := reviewClient(config, authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme)
	if err != nil {
		return nil, fmt.Errorf("make a client for token reviews: %w", err)
	}
	access, err := reviewClient(config, authorizationv1.SchemeGroupVersion, authorizationv1.AddToScheme)
	if err != nil {
		return nil, fmt.Errorf("make a client for access reviews: %w", err)
	}
	return &TokenAuth{tokens: tokens, access: access, log: log, codes: cache.NewLRUExpireCache(maxCodes)}, nil
}

func reviewClient(
	config *rest.Config, version schema.GroupVersion, register func(*runtime.Scheme) error,
) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := register(scheme); err != nil {
		return nil, fmt.Errorf("register %s: %w", version, err)
	}
	metav1.AddToGroupVersion(scheme, version)
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.APIPath, config.GroupVersion = "/apis", &version
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(config)
}

// Admit returns 0, or the HTTP status to reject a request with.
func (a *TokenAuth) Admit(r *http.Request) int {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized
	}
	key := sha256.Sum256([]byte(token + "\x00" + r.URL.Path))
	if known, ok := a.codes.Get(key); ok {
		code, _ := known.(int)
		return code
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	code, err := a.review(ctx, token, r.URL.Path)
	if err != nil {
		a.log.WarnContext(ctx, "token cannot be reviewed", "err", err)
		return http.StatusServiceUnavailable
	}
	ttl := rejectedTTL
	if code == 0 {
		ttl = admittedTTL
	}
	a.codes.Add(key, code, ttl)
	return code
}

func (a *TokenAuth) review(ctx context.Context, token, path string) (int, error) {
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
	if err := a.access.Post().Resource("subjectaccessreviews").Body(review).Do(ctx).Into(review); err != nil {
		return 0, fmt.Errorf("review access: %w", err)
	}
	if !review.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return 0, nil
}

// user is a token's: one for topo-master, or one for the API server. It is nil
// if the token is neither.
func (a *TokenAuth) user(ctx context.Context, token string) (*authenticationv1.UserInfo, error) {
	for _, audiences := range [][]string{{Audience}, nil} {
		review := &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
		}
		if err := a.tokens.Post().Resource("tokenreviews").Body(review).Do(ctx).Into(review); err != nil {
			return nil, fmt.Errorf("review token: %w", err)
		}
		// An authenticator that does not know audiences returns none.
		if review.Status.Authenticated && (audiences == nil || slices.Contains(review.Status.Audiences, Audience)) {
			return &review.Status.User, nil
		}
	}
	return nil, nil //nolint:nilnil // A token without a user is no error.
}
