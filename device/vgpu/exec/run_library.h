// Part of the switch of run.h: clocks, cache policies and the functions of library.h.
    case E_clock: {
      u64 v = k->executed + k->slept + (u64)(start_budget - budget);
      if (in->kind) STORE(u64, d[l] = v)
      else STORE(u32, d[l] = (u32)v)
      break;
    }
    case E_policy: // L2 policy. imm: the hints; b, c: bytes of a range's primary part and of the whole range
      EACH(m) {
        u64 v = (u64)in->imm;
        if (in->kind) {
          f32 f = bits_f32(U32(in->a)[l]);
          v |= f > 0 && f <= 1 ? (u64)((f - 0x1p-23f) * 16) << 52 : 0;
        } else {
          u64 from = U64(in->a)[l], end = from + U32(in->b)[l];
          u32 all = U32(in->c)[l], size = all > 1u << 19 ? 32 - (u32)__builtin_clz(all - 1) - 19 : 0, block = 12 + size;
          s64 n = (s64)((u32)((end + (1ull << block) - 1) >> block) - (u32)(from >> block));
          v |= (u64)(n < 1 ? 1 : n > 127 ? 127 : n) << 37 | (u64)(u32)(from >> block) << 44 | (u64)size << 52;
        }
        U64(in->d)[l] = v;
      }
      break;
    case E_vprintf:
      g->pc = pc;
      EACH(m) {
        u8 *lane = w->local + (u64)l * LOCAL_BYTES + g->fr->local;
        u64 format, args;
        memcpy(&format, lane + extra[in->x], 8);
        memcpy(&args, lane + extra[in->x + 1], 8);
        s32 n = print_formatted(k, w, g, (int)l, format, args);
        if (extra[in->x + 2] < 0) continue;
        memcpy(lane + extra[in->x + 2], &n, 4);
        written(w, lane + extra[in->x + 2], 4);
      }
      break;
    case E_malloc: case E_free: // extra: local offsets of the result (malloc only) and the argument
      g->pc = pc;
      effect(k);
      EACH(m) {
        u8 *lane = w->local + (u64)l * LOCAL_BYTES + g->fr->local;
        u64 v;
        memcpy(&v, lane + extra[in->x + (in->op == E_malloc)], 8);
        if (in->op == E_malloc) {
          v = allocate(state->heap, v);
          before_strong(k, w, l, (u8 *)v); // uses of the block before it was freed are over
          memcpy(lane + extra[in->x], &v, 8);
          written(w, lane + extra[in->x], 8);
        } else if (after_strong(k, w, l, (u8 *)v, 1), !release_memory(state->heap, v)) {
          FAULT(k, w, g, (int)l, free_address, .address = v);
          FAULTED
        }
      }
      break;
    case E_device: { // kind: DEVICE_*; extra: local offsets of the result, or -1, and of the arguments
      g->pc = pc;
      effect(k);
      EACH(m) {
        u8 *lane = w->local + (u64)l * LOCAL_BYTES + g->fr->local;
        u64 v = 0, first = 0, second = 0;
        u32 sizes[6], shared;
        int bytes = in->kind == DEVICE_BUFFER ? 8 : 4;
        if (in->kind != DEVICE_NOTHING) memcpy(&first, lane + extra[in->x + 1], 8);
        if (in->kind == DEVICE_LAUNCH) {
          memcpy(&second, lane + extra[in->x + 2], 8);
          after_strong(k, w, l, (u8 *)first, 1); // for the next use of the memory, as in free and malloc
          v = launch_child(k, first, second);
        } else if (in->kind == DEVICE_BUFFER) {
          memcpy(sizes, lane + extra[in->x + 2], 12);
          memcpy(sizes + 3, lane + extra[in->x + 3], 12);
          memcpy(&shared, lane + extra[in->x + 4], 4);
          v = prepare_child(k, first, sizes, shared);
          before_strong(k, w, l, (u8 *)v);
        } else if (in->kind == DEVICE_HANDLE) {
          u8 *p = at(k, w, g, GENERIC, (int)l, first, 8, WRITE);
          u64 handle = 16 + ++state->handles;
          if (p == NULL) FAULTED
          memcpy(p, &handle, 8);
        }
        if (extra[in->x] < 0) continue;
        memcpy(lane + extra[in->x], &v, (size_t)bytes);
        written(w, lane + extra[in->x], (size_t)bytes);
      }
      break;
    }
    case E_assertfail: {
      g->pc = pc;
      u8 *lane = w->local + (u64)__builtin_ctz(m) * LOCAL_BYTES + g->fr->local;
      u64 message, file;
      u32 line;
      memcpy(&message, lane + extra[in->x], 8);
      memcpy(&file, lane + extra[in->x + 1], 8);
      memcpy(&line, lane + extra[in->x + 2], 4);
      FAULT(k, w, g, __builtin_ctz(m), assertion, .message = message, .file = file, .line = (s32)line);
      FAULTED
    }
