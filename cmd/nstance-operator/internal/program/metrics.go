package program

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// reviewLimit bounds the time that Kubernetes has to say who a reader is.
const reviewLimit = 5 * time.Second

// Readers of metrics may ask this often: each request asks Kubernetes.
const (
	readsPerSecond = 5
	readBurst      = 20
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// permitReaders serves metrics to clients whose token Kubernetes permits to
// get the URL.
func permitReaders(c *rest.Config, web *http.Client) (metrics.Filter, error) {
	api, err := kubernetes.NewForConfigAndClient(c, web)
	if err != nil {
		return nil, err
	}
	limit := rate.NewLimiter(readsPerSecond, readBurst)
	return func(_ logr.Logger, next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok || token == "" {
				http.Error(w, "send the token of a service account", http.StatusUnauthorized)
				return
			}
			if !limit.Allow() {
				http.Error(w, "too many requests", http.StatusTooManyRequests)
				return
			}
			if code, why := review(r.Context(), api, token, r.URL.Path); code != http.StatusOK {
				http.Error(w, why, code)
				return
			}
			next.ServeHTTP(w, r)
		}), nil
	}, nil
}

// review asks Kubernetes who has a token, and whether they may get a path.
func review(ctx context.Context, api kubernetes.Interface, token, path string) (code int, why string) {
	ctx, cancel := context.WithTimeout(ctx, reviewLimit)
	defer cancel()
	who, err := api.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, "Kubernetes did not review the token"
	case !who.Status.Authenticated:
		return http.StatusUnauthorized, "Kubernetes does not know the token"
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range who.Status.User.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	may, err := api.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: who.Status.User.Username, UID: who.Status.User.UID, Groups: who.Status.User.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, "Kubernetes did not review the access"
	case !may.Status.Allowed:
		return http.StatusForbidden, who.Status.User.Username + " may not get " + path
	}
	return http.StatusOK, ""
}
