package cli

import (
	"context"
	"errors"
	"io/fs"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// remedy returns the recommended action for an error that any command can have; empty for those that
// have one of their own, or none.
func remedy(err error) string {
	dial, isNetwork := errors.AsType[*net.OpError](err)
	switch {
	case apierrors.IsUnauthorized(err):
		return "Log in again: the API server does not accept the credentials of the kubeconfig."
	case apierrors.IsForbidden(err):
		return "Ask an administrator for this right; kubectl auth can-i --list shows those that you have."
	case apierrors.IsNotFound(err):
		return "Check the name, and the cluster: kubectl config current-context."
	case isNetwork && dial.Op == "dial":
		return "Check the address, which --server, --kubeconfig and --context decide, and that it can be reached from here."
	case errors.Is(err, fs.ErrPermission):
		return "Run it as a user who may read that, such as root."
	case errors.Is(err, fs.ErrNotExist):
		return "Check the path."
	case errors.Is(err, context.DeadlineExceeded):
		return "Try again; if it goes on, look at the server's own log."
	}
	return ""
}
