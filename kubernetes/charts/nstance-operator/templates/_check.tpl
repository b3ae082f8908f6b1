{{/* What would fail in the middle, or fight with another installation, is refused before
anything is applied. An API server is asked; helm template has none. */}}
{{- define "nstance-operator.check" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}
{{- range concat .Values.namespaces .Values.secrets.namespaces | uniq }}
{{- if not (lookup "v1" "Namespace" "" .) }}
{{- fail (printf "namespace %s of namespaces or secrets.namespaces does not exist: create it first" .) }}
{{- end }}
{{- end }}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items }}
{{- $annotations := .metadata.annotations | default dict }}
{{- $own := and (eq $.Release.Name (get $annotations "meta.helm.sh/release-name")) (eq $.Release.Namespace (get $annotations "meta.helm.sh/release-namespace")) }}
{{- $further := regexMatch "-(secrets|program|metrics-reader)$" .metadata.name }}
{{- if and (eq "infrastructure-nstance" (get (.metadata.labels | default dict) "cluster.x-k8s.io/provider")) (not $own) (not $further) }}
{{- $filter := get $annotations "nstance.dev/watch-filter" }}
{{- $namespaces := compact (splitList "," (get $annotations "nstance.dev/namespaces")) }}
{{- $filtered := and $filter $.Values.watchFilter (ne $filter $.Values.watchFilter) }}
{{- $apart := and $namespaces $.Values.namespaces }}
{{- range $.Values.namespaces }}
{{- if has . $namespaces }}
{{- $apart = false }}
{{- end }}
{{- end }}
{{- if not (or $filtered $apart) }}
{{- fail (printf "the operator with ClusterRole %s (release %s in namespace %s) reconciles the same objects: give each of the two its own namespaces, or its own watchFilter" .metadata.name (get $annotations "meta.helm.sh/release-name" | default "unknown") (get $annotations "meta.helm.sh/release-namespace" | default "unknown")) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
