package manifest

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// template returns a template of the manifest; nil if it has none of the name.
func (s *Set) template(name types.NamespacedName) *resourceapi.ResourceClaimTemplate {
	at := slices.IndexFunc(s.Templates, func(t resourceapi.ResourceClaimTemplate) bool {
		return t.Namespace == name.Namespace && t.Name == name.Name
	})
	if at < 0 {
		return nil
	}
	return &s.Templates[at]
}

// MissingTemplates returns the templates of claims that pods refer to and the manifest lacks.
func (s *Set) MissingTemplates() (names []types.NamespacedName) {
	for _, pod := range s.Pods {
		for i := range pod.Spec.ResourceClaims {
			template := pod.Spec.ResourceClaims[i].ResourceClaimTemplateName
			if template == nil {
				continue
			}
			name := types.NamespacedName{Namespace: pod.Namespace, Name: *template}
			if s.template(name) == nil && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// Claim makes the claims that pods get by the Templates, as kube-controller-manager does.
func (s *Set) Claim() {
	for _, pod := range s.Pods {
		for i := range pod.Spec.ResourceClaims {
			ref := &pod.Spec.ResourceClaims[i]
			if ref.ResourceClaimTemplateName == nil {
				continue
			}
			t := s.template(types.NamespacedName{Namespace: pod.Namespace, Name: *ref.ResourceClaimTemplateName})
			if t == nil {
				continue
			}
			name := pod.Name + "-" + ref.Name
			s.Claims = append(s.Claims, resourceapi.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: pod.Namespace, Name: name, UID: types.UID(UIDPrefix + pod.Namespace + "/" + name),
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
				},
				Spec: t.Spec.Spec,
			})
			pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{
				Name: ref.Name, ResourceClaimName: &name,
			})
		}
	}
}
